"""Tables of the suite: one row per problem, and counts against the goals."""

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laws.judge import LawOutcome, PhaseOutcome, choose_oracle
from laws.problem import Problem
from laws.rivals import all_settings

COLUMNS = [
    *("problem", "kind", "law", "run", "phase", "steps"),
    *("settled_to_5", "error", "overshoot", "failed"),
]
MOVED_STEPS = 300  # steps within which a moved target should be reached


@dataclass(frozen=True)
class Comparison:
    """One law against the oracle and the published gains on one problem.

    Args:
        problem: Problem.
        law: Judgement of the law.
        oracle: Judgement of the best tuned rival; None without rivals.
        published: Judgement of the published gains; None without them.
    """

    problem: Problem
    law: LawOutcome
    oracle: LawOutcome | None
    published: LawOutcome | None

    @property
    def ratio(self) -> float:
        """Steps to settle relative to the oracle's; NaN without an oracle that settles."""
        return _ratio(self.law, self.oracle)

    @property
    def is_quick_after_moves(self) -> bool:
        """True if each moved target is reached in 300 steps or twice the oracle's."""
        moved = self.law.settling_after_moves
        rival = self.oracle.settling_after_moves if self.oracle else [0.0] * len(moved)
        limits = [max(MOVED_STEPS, 2 * each) for each in rival]
        return all(steps <= limit for steps, limit in zip(moved, limits, strict=True))

    @property
    def overshoots_more(self) -> bool | None:
        """True if the overshoot is above the published gains' and outside the band.

        None if the published gains fail: a law that never arrives does not overshoot.
        """
        if self.published is None or self.published.failures:
            return None
        return self.law.overshoot > max(self.published.overshoot, 0.05)


def compare(problem: Problem, outcomes: Sequence[LawOutcome], law: str = "auto") -> Comparison:
    """Compare a law with the rivals on one problem.

    Args:
        problem: Problem.
        outcomes: Judgements of all settings.
        law: Name of the setting to compare.
    """
    by_name = {each.law: each for each in outcomes}
    tuned = {each.name for each in all_settings() if each.tuned}
    rivals = [each for name, each in by_name.items() if name in tuned]
    return Comparison(
        problem,
        by_name[law],
        choose_oracle(rivals) if rivals else None,
        by_name.get("pi-published"),
    )


def format_problem(name: str, outcomes: Sequence[LawOutcome], seconds: float) -> Iterator[str]:
    """Yield the lines of one problem for the terminal.

    Args:
        name: Name of the problem.
        outcomes: Judgements of its settings.
        seconds: Seconds of processor time.
    """
    yield f"{name}: {seconds:.0f} s"
    for each in outcomes:
        moved = " ".join(f"{steps:,.0f}" for steps in each.settling_after_moves)
        yield (
            f"    {each.law:18} settled {_steps(each):>8}"
            + (f" (after moves {moved})" if moved else "")
            + f"  error {each.error:6.1%}  overshoot {each.overshoot:5.0%}"
            + (f"  FAILED {each.failures} of {len(each.runs)}" if each.failures else "")
        )


def _steps(outcome: LawOutcome) -> str:
    return f"{outcome.settling:,.0f}" if outcome.has_settled else "-"


def summarise(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines of a Markdown list of counts against the goals."""
    count = len(comparisons)
    failed = sum(each.law.failures > 0 for each in comparisons)
    unsettled = sum(not each.law.has_settled for each in comparisons)
    yield f"- failed (over 20 % off at the end of a phase): {failed} of {count}, goal 0"
    yield f"- not settled to ±5 %: {unsettled} of {count}"
    ratios = [each.ratio for each in comparisons if not math.isnan(each.ratio)]
    if ratios:
        for limit, goal in ((2, "80 %"), (4, "all")):
            within = sum(ratio <= limit for ratio in ratios)
            yield f"- within {limit} x the oracle's steps: {within} of {len(ratios)}, goal {goal}"
    moved = [each for each in comparisons if each.law.settling_after_moves]
    if moved:
        quick = sum(each.is_quick_after_moves for each in moved)
        yield f"- {MOVED_STEPS} steps or 2 x the oracle's after moves: {quick} of {len(moved)}"
    exact = sum(each.law.error < 0.01 for each in comparisons)
    yield f"- steady-state error below 1 %: {exact} of {count}, goal 95 %"
    judged = [each.overshoots_more for each in comparisons if each.overshoots_more is not None]
    if judged:
        yield (
            "- overshoot at most that of the published gains, or 5 %: "
            f"{judged.count(False)} of {len(judged)} where those arrive"
        )
    typical = statistics.median(each.law.overshoot for each in comparisons)
    yield f"- median overshoot: {typical:.0%}"


def best_of_families(outcomes: Sequence[LawOutcome]) -> dict[str, LawOutcome]:
    """Return each fixed setting, the best setting of each grid and the best of all grids.

    Args:
        outcomes: Judgements of all settings on one problem.
    """
    by_name = {each.law: each for each in outcomes}
    families: dict[str, list[LawOutcome]] = {}
    for setting in all_settings():
        if setting.name in by_name:
            label = f"best of {setting.family}" if setting.tuned else setting.name
            families.setdefault(label, []).append(by_name[setting.name])
            if setting.tuned:
                families.setdefault("oracle", []).append(by_name[setting.name])
    return {label: choose_oracle(members) for label, members in families.items()}


def format_rivals(outcomes: Mapping[str, Sequence[LawOutcome]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row per law, over all problems.

    Args:
        outcomes: Judgements by problem.
    """
    yield (
        "| law | failed | not settled | within 2 x the oracle | within 4 x "
        "| error below 1 % | median overshoot |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    families = [best_of_families(judged) for judged in outcomes.values()]
    for label in dict.fromkeys(label for family in families for label in family):
        pairs = [(each[label], each.get("oracle")) for each in families if label in each]
        laws, count = [law for law, _ in pairs], len(pairs)
        ratios = [_ratio(law, oracle) for law, oracle in pairs]
        yield (
            f"| {label} | {sum(law.failures > 0 for law in laws)} of {count} "
            f"| {sum(not law.has_settled for law in laws)} "
            f"| {sum(ratio <= 2 for ratio in ratios)} | {sum(ratio <= 4 for ratio in ratios)} "
            f"| {sum(law.error < 0.01 for law in laws)} "
            f"| {statistics.median(law.overshoot for law in laws):.0%} |"
        )


def _ratio(law: LawOutcome, oracle: LawOutcome | None) -> float:
    """Return steps to settle relative to an oracle's; NaN without an oracle that settles."""
    if oracle is None or not oracle.has_settled:
        return math.nan
    return law.settling / oracle.settling if law.has_settled else math.inf


def format_table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row per problem."""
    yield (
        "| problem | Auto settles | oracle settles | ratio | oracle | after moves: Auto, oracle "
        "| error | overshoot: Auto, published | failed: Auto, published |"
    )
    yield "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for each in comparisons:
        law, oracle, published = each.law, each.oracle, each.published
        yield (
            (
                f"| {_cell(each.problem.name)} | {_steps(law)} | {_steps(oracle) if oracle else ''} "
                f"| {each.ratio:.2g} | {oracle.law if oracle else ''} "
                f"| {_moves(law)}{', ' + _moves(oracle) if oracle and _moves(oracle) else ''} "
                f"| {law.error:.1%} | {law.overshoot:.0%}"
                f"{f', {published.overshoot:.0%}' if published else ''} "
                f"| {law.failures}{f', {published.failures}' if published else ''} |"
            )
            .replace(" nan ", " - ")
            .replace(" inf ", " ∞ ")
        )


def _cell(name: str) -> str:
    """Return a name as the text of a table cell, in which | would end the cell."""
    return name.replace("|", r"\|")


def _moves(outcome: LawOutcome) -> str:
    return "/".join(f"{steps:,.0f}" for steps in outcome.settling_after_moves)


def write_report(
    problems: Sequence[Problem],
    outcomes: Mapping[str, Sequence[LawOutcome]],
    traces: Path,
    out: Path | None,
    law: str = "auto",
) -> None:
    """Print the counts, and write table, CSV files and figure to a folder.

    Args:
        problems: Problems of the report.
        outcomes: Judgements by problem.
        traces: Folder of traces.
        out: Folder to write; None prints only.
        law: Name of the setting to compare.
    """
    judged = [each for each in problems if law in {one.law for one in outcomes[each.name]}]
    comparisons = [compare(each, outcomes[each.name], law) for each in judged]
    if not comparisons:
        return
    tables = [*format_table(comparisons), "", *format_rivals(outcomes)]
    lines = [*summarise(comparisons), "", *tables]
    print(*lines, sep="\n")
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.md").write_text("\n".join(lines) + "\n")
    write_runs(problems, outcomes, out / "runs.csv")
    from laws.figure import draw_comparisons

    draw_comparisons(comparisons, traces, out / "traces.png")


def write_runs(
    problems: Sequence[Problem], outcomes: Mapping[str, Sequence[LawOutcome]], path: Path
) -> None:
    """Write a CSV file with a line per problem, setting, seed and reachable phase.

    Args:
        problems: Problems of the report.
        outcomes: Judgements by problem.
        path: File to write.
    """
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for problem in problems:
            for outcome in outcomes[problem.name]:
                for run, phases in enumerate(outcome.runs):
                    names = [problem.name, problem.kind, outcome.law, run]
                    writer.writerows(_csv_rows(names, phases))


def _csv_rows(names: list[Any], phases: Sequence[PhaseOutcome | None]) -> Iterator[list[Any]]:
    for number, phase in enumerate(phases):
        if phase is not None:
            settled = "" if phase.settled is None else phase.settled
            errors = [f"{phase.error:.5f}", f"{phase.overshoot:.5f}"]
            yield [*names, number, phase.steps, settled, *errors, int(phase.has_failed)]
