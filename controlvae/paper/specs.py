"""Specifications of tables and figures: methods, columns and the numbers that the paper printed."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Printed:
    """A number printed in the paper: its mean over seeds and its standard deviation, if given."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Row:
    """One method of a table or figure.

    Attributes:
        method: Name shown to the reader.
        preset: Preset that trains it, or None for a user-supplied method.
        printed: The paper's numbers by column heading. Missing ones are left out.
    """

    method: str
    preset: str | None
    printed: dict[str, Printed] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Key under which the runs of this row are passed around."""
        return self.preset or self.method


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or one in its style.

    Attributes:
        name: Name on the command line and of the output files.
        title: Heading of the table.
        columns: Dotted path into `metrics.json` by column heading.
        rows: Methods, the first of which the others are compared with.
        note: Remark on how to read the numbers.
        terms: Data, model and objective of the presets, shown if all runs share them.
        more: Further columns of the CSV file.
    """

    name: str
    title: str
    columns: dict[str, str]
    rows: tuple[Row, ...]
    note: str = ""
    terms: str = ""
    more: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScatterAxes:
    """Axes of a scatter plot: dotted paths into `metrics.json`, labels and a reading aid."""

    x: str
    y: str
    labels: tuple[str, str]
    reading: str


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, or one in its style.

    Attributes:
        name: Name on the command line and of the output files.
        title: Caption.
        rows: Methods in the order of the legend.
        latents_of: Preset whose KL per latent is drawn.
        curves: Log columns drawn against steps, one panel each.
        scatter: Axes of a scatter plot with one point per run.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    latents_of: str = ""
    curves: tuple[str, ...] = ()
    scatter: ScatterAxes | None = None


@dataclass(frozen=True)
class PaperExamples:
    """Generated responses of several methods, as in the paper's appendix."""

    name: str
    title: str
    rows: tuple[Row, ...]
    note: str = ""
