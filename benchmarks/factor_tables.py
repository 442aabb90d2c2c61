"""Write Tables 6 and 7 with their five factors from the committed scores of every seed.

    python benchmarks/factor_tables.py

`controlvae reproduce ablation-target` writes the same files from run folders. The weights of these
runs are not in the repository, but results/disentangling/scores.csv has the RMIG of every factor
and seed. Remarks below the tables are kept.
"""

import csv
from pathlib import Path

from controlvae.paper.disentangling_tables import DISENTANGLING_TABLES
from controlvae.paper.specs import PaperTable, Row
from controlvae.paper.table_writer import Cell

RESULTS = Path(__file__).resolve().parents[1] / "results" / "disentangling"
TABLES = ("ablation-target", "ablation-step")
_DIGITS = 4


def main() -> None:
    """Write both tables."""
    with (RESULTS / "scores.csv").open(encoding="utf-8") as file:
        scores = list(csv.DictReader(file))
    for table in DISENTANGLING_TABLES:
        if table.name in TABLES:
            write_table(table, scores)


def write_table(table: PaperTable, scores: list[dict[str, str]]) -> None:
    """Write the Markdown and CSV file of a table.

    Args:
        table: Specification of the table.
        scores: Rows of scores.csv.
    """
    path = RESULTS / f"{table.name}.md"
    remarks = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    remarks = [line for line in remarks[1:] if not line.startswith("|") and line != table.note]
    lines = [f"**{table.title}**", "", *table_lines(table, scores)]
    lines += [part for remark in (*remarks, table.note) for part in ("", remark)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "preset", "seed", "step", *table.columns])
        for row in table.rows:
            for seed in _seeds(row, scores):
                values = [seed[_score_name(column)] for column in table.columns]
                writer.writerow([row.method, row.preset, seed["seed"], seed["step"], *values])


def table_lines(table: PaperTable, scores: list[dict[str, str]]) -> list[str]:
    """Return the head and a line per method: mean ± sd over seeds and the paper's number."""
    lines = [f"| method | seeds | steps | {' | '.join(table.columns)} |"]
    lines.append(f"| --- | ---: | ---: | {' | '.join('---' for _ in table.columns)} |")
    for row in table.rows:
        seeds = _seeds(row, scores)
        steps = " to ".join(f"{int(step):,}" for step in sorted({s["step"] for s in seeds}))
        cells = [
            Cell(
                tuple(float(seed[_score_name(column)]) for seed in seeds), row.printed.get(column)
            ).format(_DIGITS)
            for column in table.columns
        ]
        lines.append(f"| {row.method} | {len(seeds)} | {steps} | {' | '.join(cells)} |")
    return lines


def _seeds(row: Row, scores: list[dict[str, str]]) -> list[dict[str, str]]:
    return [score for score in scores if score["run"] == row.preset]


def _score_name(column: str) -> str:
    return column if column == "RMIG" else f"RMIG of {column}"


if __name__ == "__main__":
    main()
