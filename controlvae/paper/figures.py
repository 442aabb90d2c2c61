"""All figures and examples by name, and the lookup of any result of the paper."""

from controlvae.errors import unknown_name_error
from controlvae.lab.config.renames import warn_renamed
from controlvae.paper.specs import PaperExamples, PaperFigure, PaperTable, Row, ScatterAxes
from controlvae.paper.tables import TABLES
from controlvae.paper.text_tables import PTB_ROWS

_MIG_AGAINST_RECONSTRUCTION = ScatterAxes(
    "reconstruction",
    "mig_sampled.score",
    ("reconstruction (nats per example)", "MIG, sampled"),
    "Better is up and to the left.",
)
_FIGURES = (
    PaperFigure(
        "figure-disentangling",
        "Figure 3: reconstruction and weight against steps, and KL per latent",
        TABLES["table-mig"].rows,
        latents_of="shapes2d-control-18",
    ),
    PaperFigure(
        "figure-traversals",
        "Figure 4: latent traversals in [-3, 3], rows ordered by KL",
        TABLES["table-mig"].rows,
    ),
    PaperFigure(
        "figure-mig",
        "Beyond the paper: MIG of every run against its reconstruction",
        (
            *TABLES["table-mig"].rows,
            *(Row(f"ControlVAE (KL = {stop})", f"shapes2d-control-{stop}") for stop in (17, 19)),
            *(
                Row(f"KL = 16, steps of {step}", f"shapes2d-control-16-step-{step}")
                for step in (0.05, 0.1, 0.2)
            ),
            Row("KL = 18, per-latent KL weights", "shapes2d-weighted-18"),
            Row("KL = 18, staggered latents", "shapes2d-staggered-18"),
            Row("β-VAE (γ = 100) on equal terms", "shapes2d-beta-100-matched"),
        ),
        scatter=_MIG_AGAINST_RECONSTRUCTION,
    ),
    PaperFigure(
        "figure-short",
        "Beyond the paper: the same for eleven methods in 150,000 steps",
        TABLES["table-short"].rows,
        scatter=_MIG_AGAINST_RECONSTRUCTION,
    ),
    PaperFigure(
        "figure-cifar10",
        "Figure 5: ELBO, reconstruction and KL against steps on CIFAR-10",
        TABLES["table-cifar10"].rows,
        curves=("elbo", "reconstruction", "kl"),
    ),
    PaperFigure(
        "figure-celeba",
        "Beyond the paper: the same on CelebA",
        TABLES["table-celeba"].rows,
        curves=("elbo", "reconstruction", "kl"),
    ),
    PaperFigure(
        "figure-ptb",
        "Figure 6: KL, reconstruction, ELBO, the paper's curve, weight, validation (Penn Treebank)",
        PTB_ROWS,
        curves=("kl", "reconstruction", "elbo", "objective", "beta", "validation"),
    ),
)
FIGURES = {figure.name: figure for figure in _FIGURES}

_EXAMPLES = PaperExamples(
    "dialog-examples",
    "Appendix: responses of the methods to the same contexts",
    TABLES["table-dialog"].rows,
    "Contexts are a fixed random choice from the test set. B responds to A. Codes are drawn from "
    "the prior, and decoding is greedy. Switchboard's text belongs to the LDC: do not publish "
    "this file.",
)
PaperResult = PaperTable | PaperFigure | PaperExamples
RESULTS: dict[str, PaperResult] = {**TABLES, **FIGURES, _EXAMPLES.name: _EXAMPLES}
_FORMER_NAMES = {"table-prices": "table-weighted"}  # names of version 0.1


def paper_result(name: str) -> PaperResult:
    """Return the table, figure or examples of that name. A former name is accepted with a warning.

    Raises:
        UserError: There is no such table or figure.
    """
    current = _FORMER_NAMES.get(name, name)
    if current not in RESULTS:
        raise unknown_name_error("table or figure", name, RESULTS)
    if current != name:
        warn_renamed("table", name, current)
    return RESULTS[current]
