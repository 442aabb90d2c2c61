"""Digest of the settings that determine the numbers of a run. A checkpoint stores it."""

import hashlib
import json
from dataclasses import replace

from controlvae.lab.config.experiment import Experiment
from controlvae.lab.config.serialization import non_default_fields


def numeric_config(experiment: Experiment) -> Experiment:
    """Return the experiment without fields that do not affect its numbers up to a given step.

    These are its descriptions, its number of steps and its validation interval.
    """
    training = replace(experiment.training, steps=1, validate_every=0)
    return replace(experiment, name="", about="", paper="", training=training)


def config_digest(experiment: Experiment) -> str:
    """Return the SHA-256 digest of `numeric_config`, by which a checkpoint knows its run.

    Renamed fields enter under their former names, and changed defaults count as settings, so that
    checkpoints of older versions resume.
    """
    settings = non_default_fields(numeric_config(experiment), as_first_written=True)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
