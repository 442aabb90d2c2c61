"""Reading of logs."""

import numpy as np
import pytest

from controlvae.lab.runs.folder import mean_of_last_tenth


@pytest.mark.parametrize("every", [1, 5, 7, 10, 40, 95])
def test_mean_of_last_tenth_weights_lines_by_their_steps(every):
    """A line is weighted by its steps inside the last tenth."""
    ends = [*range(every, 95, every), 95]
    lines = [{"step": end, "kl": float(end) ** 2} for end in ends]
    half_steps = np.repeat([line["kl"] for line in lines], 2 * np.diff([0, *ends]))
    assert mean_of_last_tenth(lines, "kl") == pytest.approx(half_steps[-19:].mean())
