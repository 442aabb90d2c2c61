"""A digest of the settings that decide the numbers of a run."""

import hashlib
import json
from dataclasses import replace

from controlvae.lab.config.experiment import Experiment
from controlvae.lab.config.serialization import non_default_fields


def numeric_config(experiment: Experiment) -> Experiment:
    """All that decides the numbers up to a step: not its words, how long to go on and when to look."""
    training = replace(experiment.training, steps=1, validate_every=0)
    return replace(experiment, name="", about="", paper="", training=training)


def config_digest(experiment: Experiment) -> str:
    """What a checkpoint belongs to."""
    return hashlib.sha256(
        json.dumps(non_default_fields(numeric_config(experiment)), sort_keys=True).encode()
    ).hexdigest()
