"""Options of the commands that can train in jobs of a cluster."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.cli import options as cli

if TYPE_CHECKING:
    from controlvae.lab.cluster.submit import Submission

_KINDS = ("local", "slurm")
_PANEL = "Jobs on a cluster"


def _option(help: str, min: float | None = None, **more: Any) -> Any:
    return cli.option(help, min, rich_help_panel=_PANEL, show_default=False, **more)


def _cluster_options(
    cluster: Annotated[str | None, _option("Train in jobs: local or slurm.")] = None,
    partition: Annotated[str | None, _option("Slurm partition.")] = None,
    time: Annotated[str | None, _option("Limit of a job, e.g. 90m. Default: 4h on Slurm.")] = None,
    gpus: Annotated[
        int | None, _option("GPUs of a job. Default: 1 where there are any.", 0)
    ] = None,
    cpus: Annotated[int | None, _option("CPU cores of a job. Default: 1.", 1)] = None,
    array_limit: Annotated[int | None, _option("Jobs that may run at the same time.", 1)] = None,
    per_job: Annotated[int | None, _option("Runs side by side. Default: measured.", 1)] = None,
    retries: Annotated[int, _option("Starts after a failure. Default: 2.", 0)] = 2,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for Slurm.", rich_help_panel=_PANEL)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan alone.", rich_help_panel=_PANEL)
    ] = False,
) -> None:
    """Options that `takes_cluster` adds to a command."""


class ClusterChoice(NamedTuple):
    """Cluster that the options select, and whether only the plan is wanted."""

    cluster: Any
    dry_run: bool


def takes_cluster(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, and pass them on as its argument `jobs`."""
    own = inspect.signature(function)
    added = inspect.signature(_cluster_options).parameters
    kept = [one for one in own.parameters.values() if one.name != "jobs"]

    @wraps(function)
    def run(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in added}
        function(**values, jobs=_parse(**chosen))

    run.__signature__ = own.replace(parameters=[*kept, *added.values()])  # type: ignore[attr-defined]
    annotations = {**function.__annotations__, **_cluster_options.__annotations__}
    run.__annotations__ = {k: v for k, v in annotations.items() if k != "jobs"}
    return run


def _parse(cluster: str | None, dry_run: bool, partition: str | None, **chosen: Any) -> Any:
    """Return the choice of the user. Options of jobs without `--cluster` are refused."""
    wait, time = chosen.pop("wait"), chosen.pop("time")
    given = [name for name, value in chosen.items() if value is not None and name != "retries"]
    given += [name for name, value in {"partition": partition, "time": time}.items() if value]
    if cluster is None:
        if given:
            raise UserError(f"--{given[0].replace('_', '-')} needs --cluster local or slurm")
        return ClusterChoice(None, dry_run)
    if cluster not in _KINDS:
        raise unknown_name_error("cluster", cluster, _KINDS)
    if cluster == "local":
        from controlvae.lab.cluster.local import Local

        if partition is not None:
            raise UserError("--partition is for --cluster slurm")
        return ClusterChoice(Local(time=time, **chosen), dry_run)
    from controlvae.lab.cluster.slurm import Slurm

    limit = {} if time is None else {"time": time}
    return ClusterChoice(Slurm(partition=partition, wait=wait, **limit, **chosen), dry_run)


def show_submission(submission: "Submission") -> None:
    """Print what to do after jobs were planned or submitted."""
    typer.echo("\n".join(submission.lines))
