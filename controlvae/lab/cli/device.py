"""Which device a command works on."""

import torch

from controlvae.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device of that name; for `auto` a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if name.partition(":")[0] not in ("cpu", "cuda"):
            raise RuntimeError("models are trained on cpu or cuda")
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise UserError(
            f"device {name!r} is not available here ({reason}); try --device auto"
        ) from None
    return device
