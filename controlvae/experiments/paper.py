"""The paper's tables and figures as values: what it printed, and the preset that should give it."""

from dataclasses import dataclass

from controlvae.errors import unknown


@dataclass(frozen=True)
class Printed:
    """A number of the paper: its mean over seeds, and the spread where it is printed."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Row:
    """One method of a table."""

    method: str
    preset: str | None  # None: the method is not in this version yet
    printed: dict[str, Printed]  # by column


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper. A column is a path into `metrics.json`, written with dots."""

    name: str
    title: str
    columns: dict[str, str]  # heading -> path
    rows: tuple[Row, ...]


def _rmig(x: float, y: float, shape: float, scale: float, orientation: float, mean: float) -> dict[str, Printed]:
    values = {"x": x, "y": y, "shape": shape, "scale": scale, "orientation": orientation, "RMIG": mean}
    return {name: Printed(value) for name, value in values.items()}


_RMIG_COLUMNS = {
    **{name: f"rmig.per_factor.{name}" for name in ("x", "y", "shape", "scale", "orientation")},
    "RMIG": "rmig.score",
}

_TABLES = [
    PaperTable(
        "table-mig",
        "Table 1: MIG (Chen et al.: sampled, all images, four factors)",
        {"MIG": "mig_sampled.score"},
        (
            Row("ControlVAE (KL = 16)", "shapes2d-control-16", {"MIG": Printed(0.5628, 0.0222)}),
            Row("ControlVAE (KL = 18)", "shapes2d-control-18", {"MIG": Printed(0.5432, 0.0281)}),
            Row("Control-FactorVAE", "shapes2d-control-factor", {"MIG": Printed(0.5620, 0.0348)}),
            Row("β-VAE (β = 100)", "shapes2d-beta-100", {"MIG": Printed(0.5138, 0.0371)}),
            Row("FactorVAE (γ = 10)", "shapes2d-factor", {"MIG": Printed(0.5625, 0.0443)}),
        ),
    ),
    PaperTable(
        "table-rmig",
        "Table 2: RMIG by factor (Do & Tran, 100 bins, all images, five factors)",
        _RMIG_COLUMNS,
        (
            Row("ControlVAE (KL = 16)", "shapes2d-control-16", _rmig(0.7490, 0.7413, 0.0958, 0.6288, 0.1037, 0.4637)),
            Row("ControlVAE (KL = 18)", "shapes2d-control-18", _rmig(0.7229, 0.7221, 0.0701, 0.6404, 0.0582, 0.4427)),
            Row("Control-FactorVAE", "shapes2d-control-factor", _rmig(0.7273, 0.7442, 0.1467, 0.6996, 0.0680, 0.4772)),
            Row("β-VAE (β = 100)", "shapes2d-beta-100", _rmig(0.7112, 0.7014, 0.1325, 0.5386, 0.0819, 0.4331)),
            Row("FactorVAE (γ = 10)", "shapes2d-factor", _rmig(0.7482, 0.7276, 0.1383, 0.6262, 0.1412, 0.4763)),
        ),
    ),
    PaperTable(
        "ablation-target",
        "Table 6: RMIG against the set point",
        {"RMIG": "rmig.score"},
        tuple(
            Row(f"KL = {stop}", f"shapes2d-control-{stop}", {"RMIG": Printed(mean)})
            for stop, mean in ((16, 0.4637), (17, 0.4396), (18, 0.4427), (19, 0.4218))
        ),
    ),
    PaperTable(
        "ablation-step",
        "Table 7: RMIG against the step of the ramp (KL = 16)",
        {"RMIG": "rmig.score"},
        (
            Row("s = 0.05", "shapes2d-control-16-step-0.05", {"RMIG": Printed(0.4366)}),
            Row("s = 0.1", "shapes2d-control-16-step-0.1", {"RMIG": Printed(0.433)}),
            Row("s = 0.15", "shapes2d-control-16", {"RMIG": Printed(0.4637)}),
            Row("s = 0.2", "shapes2d-control-16-step-0.2", {"RMIG": Printed(0.4304)}),
        ),
    ),
]

TABLES = {table.name: table for table in _TABLES}


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: its methods, in the order of its legend."""

    name: str
    title: str
    rows: tuple[Row, ...]
    latents_of: str = ""  # the preset whose latents are drawn one by one


_FIGURES = [
    PaperFigure(
        "figure-disentangling",
        "Figure 3: reconstruction and weight against steps, and KL per latent",
        TABLES["table-mig"].rows,
        latents_of="shapes2d-control-18",
    ),
    PaperFigure(
        "figure-traversals", "Figure 4: latent traversals in [-3, 3], rows ordered by KL", TABLES["table-mig"].rows
    ),
]

FIGURES = {figure.name: figure for figure in _FIGURES}
RESULTS: dict[str, PaperTable | PaperFigure] = {**TABLES, **FIGURES}

# The pictures the released code starts its traversals from, by their number among all 737,280.
SEED_IMAGES = {"square": 87_040, "ellipse": 332_800, "heart": 578_560}


def paper_result(name: str) -> PaperTable | PaperFigure:
    """The table or the figure of that name."""
    if name not in RESULTS:
        raise unknown("table or figure", name, RESULTS)
    return RESULTS[name]
