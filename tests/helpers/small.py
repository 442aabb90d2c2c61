"""Small settings of everything the stacked engine trains, for the interpreter and a GPU."""

from controlvae.lab.config import preset
from controlvae.lab.engines.measurements import row_columns

TINY = [
    "data.images=64",
    "training.batch=4",
    "model.channels=(4,4,4)",
    "training.precision=fp32",
    "model.latents=3",
]
OBJECTIVES = {
    "elbo": ["model.hidden=16"],
    "free bits, falling rate": [
        "model.hidden=16",
        "objective.free_bits=0.1",
        "control=Constant(0.5)",
        "optimiser.rate=Points((1,3),(1e-2,1e-4))",
    ],
    "KL weights, delayed": [
        "model.hidden=16",
        "objective.kl_weights=(1,Points((1,3),(3,2)))",
        "training.delayed=true",
    ],
    "critic": ["model.hidden=16", "objective=TotalCorrelation(critic=(40,24))"],
    "beta-tc": ["model.hidden=16", "objective=BetaTC()", "control=Constant(6)"],
    "batch norm, learnt variance": [
        "model=ImageVAE(3,(4,4,4))",
        "objective.likelihood=Gaussian(0.05,learnt=true)",
    ],
}
# Columns of a row that the law writes. Their values are small.
CONTROL_COLUMNS = [row_columns(preset("shapes2d-quick")).index(name) for name in ("beta", "p", "i")]
