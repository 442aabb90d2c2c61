"""The problems of the suite, and their halves.

Within each kind the problems belong to the development half and the held-out half alternately.
Laws are developed on the first half alone. Their seeds differ too.
"""

from collections import Counter
from functools import cache
from typing import Any, Literal

import controlvae as cv
from laws.plants.analytic import LogLag
from laws.plants.bottlenecks import (
    ActionChunks,
    BottleneckClassifier,
    Compression,
    SparseAutoencoder,
)
from laws.plants.classifiers import (
    BayesianClassifier,
    ConfidenceClassifier,
    FineTunedClassifier,
)
from laws.plants.images import AutoencoderKL, CifarVAE, ShapesVAE
from laws.plants.policies import DiscretePolicy, GaussianPolicy, ReferencePolicy
from laws.plants.posteriors import (
    CategoricalVAE,
    ConditionalVAE,
    FlowVAE,
    LadderVAE,
    MixturePriorVAE,
    TotalCorrelationVAE,
)
from laws.plants.sequences import CountsVAE, LatentDynamics
from laws.plants.text import TextVAE
from laws.plants.vectors import DigitsVAE, LinearVAE, TableVAE
from laws.problem import Problem

DEVELOPMENT_SEEDS, HELD_OUT_SEEDS = (1, 2, 3), (11, 12, 13)

SMALL = {"batch": 16, "latents": 6}  # the cheapest plant, for long runs
INVERSE: dict[str, Any] = {"direction": "inverse"}
LAMBDA: dict[str, Any] = {
    "settings": {"weighs_distortion": True},
    "direction": "inverse",
    "gain_scale": 0.01,
}
FIRST_STAGE: dict[str, Any] = {"lr": 1e-3, "window": 200, "gain_scale": 1e-8}
COSINE_CHUNKS: dict[str, Any] = {"lr": 1e-2, "lr_schedule": "cosine", "gain_scale": 0.01}
SHIFT: dict[str, Any] = {"settings": {"shift_at": 2_500}, "disturbances": (2_500,)}
RESTARTS: dict[str, Any] = {"lr": 1e-2, "lr_schedule": "restarts"}

PROBLEMS = [
    # Plain trainings of VAEs.
    Problem("vectors", "vectors", LinearVAE, 8.0, 3_000, lr=1e-2),
    Problem("vectors, 3 nats", "vectors", LinearVAE, 3.0, 3_000),
    Problem("digits", "digits", DigitsVAE, 6.0, 4_000),
    Problem("digits, 10 nats", "digits", DigitsVAE, 10.0, 4_000, lr=1e-3),
    Problem("table", "table", TableVAE, 6.0, 4_000),
    Problem("table, 10 nats", "table", TableVAE, 10.0, 4_000),
    Problem("2D Shapes", "2D Shapes", ShapesVAE, 10.0, 2_000),
    Problem("2D Shapes, 5 nats", "2D Shapes", ShapesVAE, 5.0, 2_000, window=100),
    Problem("CIFAR-10", "CIFAR-10", CifarVAE, 15.0, 3_000, lr=1e-3, window=200),
    Problem("CIFAR-10, 25 nats", "CIFAR-10", CifarVAE, 25.0, 3_000, lr=1e-3, window=200),
    Problem("text", "text", TextVAE, 3.0, 2_500, window=100),
    Problem("text, 1.5 nats", "text", TextVAE, 1.5, 2_500, window=100),
    Problem("flow", "flow", FlowVAE, 6.0, 4_000),
    Problem("flow, 3 nats", "flow", FlowVAE, 3.0, 4_000, window=100),
    Problem("ladder", "ladder", LadderVAE, 6.0, 4_000),
    Problem("ladder, 10 nats", "ladder", LadderVAE, 10.0, 4_000),
    Problem("AutoencoderKL", "AutoencoderKL", AutoencoderKL, 500.0, 5_000, **FIRST_STAGE),
    Problem(
        "AutoencoderKL, |x|",
        "AutoencoderKL",
        AutoencoderKL,
        500.0,
        5_000,
        {"absolute": True},
        **FIRST_STAGE,
    ),
    Problem("conditional VAE", "conditional VAE", ConditionalVAE, 3.0, 4_000),
    Problem("conditional VAE, 6 nats", "conditional VAE", ConditionalVAE, 6.0, 4_000),
    Problem("action chunks", "action chunks", ActionChunks, 6.0, 4_000, gain_scale=0.01),
    Problem("action chunks, 3 nats", "action chunks", ActionChunks, 3.0, 4_000, gain_scale=0.01),
    Problem("mixture prior", "mixture prior", MixturePriorVAE, 6.0, 4_000),
    Problem("mixture prior, 3 nats", "mixture prior", MixturePriorVAE, 3.0, 4_000, window=100),
    Problem("categorical code", "categorical code", CategoricalVAE, 4.0, 4_000),
    Problem("categorical code, 7 nats", "categorical code", CategoricalVAE, 7.0, 4_000),
    Problem("world model", "world model", LatentDynamics, 6.0, 2_500),
    Problem("world model, 12 nats", "world model", LatentDynamics, 12.0, 2_500),
    Problem("single cells", "single cells", CountsVAE, 6.0, 3_000),
    Problem("single cells, 3 nats", "single cells", CountsVAE, 3.0, 3_000),
    # Other quantities.
    Problem("VIB", "VIB", BottleneckClassifier, 4.0, 3_000),
    Problem("VIB, 8 nats", "VIB", BottleneckClassifier, 8.0, 3_000),
    Problem("total correlation", "total correlation", TotalCorrelationVAE, 1.0, 6_000, window=400),
    Problem(
        "total correlation, 2 nats",
        "total correlation",
        TotalCorrelationVAE,
        2.0,
        4_000,
        window=200,
    ),
    Problem("policy KL", "policy KL", ReferencePolicy, 2.0, 3_000, window=200),
    Problem("policy KL, 1 nat", "policy KL", ReferencePolicy, 1.0, 4_000, window=200),
    Problem("SAC entropy", "SAC entropy", GaussianPolicy, -2.0, 4_000, window=200, **INVERSE),
    Problem(
        "SAC entropy, 3 actions",
        "SAC entropy",
        GaussianPolicy,
        -3.0,
        4_000,
        {"actions": 3},
        window=200,
        **INVERSE,
    ),
    Problem("bandit entropy", "entropy bonus", DiscretePolicy, 1.2, 3_000, **INVERSE),
    Problem("bandit entropy, 2 nats", "entropy bonus", DiscretePolicy, 2.0, 3_000, **INVERSE),
    Problem("confidence", "confidence", ConfidenceClassifier, 0.8, 3_000, window=100, **INVERSE),
    Problem(
        "confidence, 0.3 nats",
        "confidence",
        ConfidenceClassifier,
        0.3,
        4_000,
        window=200,
        **INVERSE,
    ),
    Problem("fine-tuning KL", "fine-tuning KL", FineTunedClassifier, 0.5, 3_000),
    Problem("fine-tuning KL, 1 nat", "fine-tuning KL", FineTunedClassifier, 1.0, 3_000),
    Problem("sparse code", "sparse code", SparseAutoencoder, 8.0, 4_000),
    Problem("sparse code, L0 16", "sparse code", SparseAutoencoder, 16.0, 4_000),
    Problem("Bayesian weights", "Bayesian weights", BayesianClassifier, 0.3, 4_000, gain_scale=10),
    Problem(
        "Bayesian weights, 0.6 nats",
        "Bayesian weights",
        BayesianClassifier,
        0.6,
        4_000,
        gain_scale=10,
    ),
    Problem("bits per pixel", "bits per pixel", Compression, 0.8, 4_000, gain_scale=1e4),
    Problem("bits per pixel, 1.2", "bits per pixel", Compression, 1.2, 4_000, gain_scale=1e3),
    Problem("bits per pixel, λ", "λ on distortion", Compression, 0.8, 4_000, **LAMBDA),
    Problem("bits per pixel, λ, 0.6", "λ on distortion", Compression, 0.6, 4_000, **LAMBDA),
    # Moved targets, at any age of a run.
    Problem("moved up at 500", "early move", LinearVAE, 4.0, 2_500, moves=((500, 10.0),)),
    Problem("moved down at 500", "early move", LinearVAE, 10.0, 2_500, moves=((500, 4.0),)),
    Problem("moved up at 10,000", "late move", LinearVAE, 4.0, 12_000, SMALL, ((10_000, 10.0),)),
    Problem("moved down at 10,000", "late move", LinearVAE, 10.0, 12_000, SMALL, ((10_000, 4.0),)),
    Problem("moved down at 50,000", "old move", LinearVAE, 10.0, 52_000, SMALL, ((50_000, 4.0),)),
    Problem("moved up at 50,000", "old move", LinearVAE, 4.0, 52_000, SMALL, ((50_000, 10.0),)),
    Problem("ramp up", "ramp", DigitsVAE, cv.Linear(1.0, 10.0, steps=2_000), 4_000),
    Problem("ramp down", "ramp", DigitsVAE, cv.Linear(12.0, 4.0, steps=2_000), 4_000),
    Problem(
        "unreachable, then 6 nats",
        "unreachable",
        DigitsVAE,
        200.0,
        6_000,
        moves=((3_000, 6.0),),
        unreachable=(0,),
    ),
    Problem(
        "unreachable L0, then 8",
        "unreachable",
        SparseAutoencoder,
        0.5,
        6_000,
        moves=((3_000, 8.0),),
        unreachable=(0,),
    ),
    # Units, noise, batch sizes, optimisers and data.
    Problem("units x 1,000", "units", DigitsVAE, 6_000.0, 4_000, unit=1e3, gain_scale=1e-6),
    Problem("units / 1,000", "units", DigitsVAE, 0.006, 4_000, unit=1e-3, gain_scale=1e6),
    Problem("batch 8", "small batch", DigitsVAE, 2.0, 6_000, {"batch": 8}, window=200),
    Problem("batch 8, text", "small batch", TextVAE, 2.0, 3_000, {"batch": 8}, window=200),
    Problem("batch 1,024", "big batch", LinearVAE, 8.0, 1_000, {"batch": 1_024}, window=20),
    Problem(
        "batch 1,024, VIB",
        "big batch",
        BottleneckClassifier,
        4.0,
        1_000,
        {"batch": 1_024},
        window=20,
    ),
    Problem("SGD", "SGD", LinearVAE, 6.0, 4_000, optimiser="sgd", lr=1e-2),
    Problem("SGD, VIB", "SGD", BottleneckClassifier, 4.0, 4_000, optimiser="sgd", lr=3e-2),
    Problem("Adam at 1e-4", "small rate", LinearVAE, 6.0, 8_000, SMALL, lr=1e-4),
    Problem("Adam at 1e-4, VIB", "small rate", BottleneckClassifier, 4.0, 6_000, lr=1e-4),
    Problem("cosine", "cosine", DigitsVAE, 6.0, 4_000, lr=1e-2, lr_schedule="cosine"),
    Problem("cosine, chunks", "cosine", ActionChunks, 5.0, 4_000, **COSINE_CHUNKS),
    Problem("restarts", "restarts", DigitsVAE, 8.0, 4_000, lr=1e-2, lr_schedule="restarts"),
    Problem("restarts, VIB", "restarts", BottleneckClassifier, 4.0, 4_000, **RESTARTS),
    Problem("data shift", "data shift", DigitsVAE, 6.0, 5_000, **SHIFT),
    Problem("data shift, 3 nats", "data shift", DigitsVAE, 3.0, 5_000, **SHIFT),
    Problem("collapsed start", "collapse", DigitsVAE, 6.0, 5_000, {"gain": 1e-3}),
    Problem("collapsed start, 3 nats", "collapse", DigitsVAE, 3.0, 5_000, {"gain": 1e-3}),
    # Analytic plants, for what a network cannot show.
    Problem("dead time", "analytic", LogLag, 1.0, 5_000, {"delay": 20}, gain_scale=10),
    Problem(
        "steep and noisy", "analytic", LogLag, 1.0, 5_000, {"slope": 2.0, "noise": 0.2}, window=200
    ),
]


@cache
def _halves() -> dict[str, str]:
    counts: Counter[str] = Counter()
    halves = {}
    for problem in PROBLEMS:
        halves[problem.name] = "held-out" if counts[problem.kind] % 2 else "development"
        counts[problem.kind] += 1
    return halves


def half_of(problem: Problem) -> Literal["development", "held-out"]:
    """Return the half of the suite to which a problem belongs."""
    return _halves()[problem.name]  # type: ignore[return-value]
