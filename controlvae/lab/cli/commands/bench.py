"""Command `bench`: training speed on this machine."""

from pathlib import Path
from typing import Annotated

from controlvae.lab.cli import options as cli


@cli.command("bench", cli.TRAIN)
def _bench(
    preset: Annotated[str, cli.argument("Name from `controlvae presets`.")] = "shapes2d-control-16",
    sets: cli.Sets = None,
    device: cli.Device = "auto",
    models: Annotated[str, cli.option("Numbers of models side by side.")] = "1,5,25",
    batches: Annotated[str, cli.option("Batch sizes to try with one model.")] = "",
    sizes: Annotated[str, cli.option("Image sizes to try with one model.")] = "",
    precisions: Annotated[str, cli.option("fp32, tf32 or bf16. A CPU has fp32.")] = "bf16,tf32",
    seconds: Annotated[float, cli.option("Time for each line.", 0.1)] = 5.0,
    out: Annotated[Path | None, cli.option("Write the table as JSON too.")] = None,
    data_root: cli.DataRoot = None,
) -> None:
    """Measure steps per second: a plain loop, pythae's trainer, and ours for one and many models.

    Text is counted in tokens. pythae has no model of text.
    """
    from controlvae.lab.bench.table import BenchLists, show_bench
    from controlvae.lab.config import override
    from controlvae.lab.config import preset as find_preset
    from controlvae.lab.engines.device import pick_device

    chosen = pick_device(device)
    available = precisions if chosen.type == "cuda" else "fp32"
    lists = BenchLists.parse(models, batches, available, sizes)
    show_bench(override(find_preset(preset), sets or []), chosen, lists, seconds, out, data_root)
