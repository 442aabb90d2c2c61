"""Commands `sample`, `reconstruct`, `traverse` and `interpolate`."""

from typing import Annotated, Any

from controlvae.lab.cli import options as cli


@cli.command("traverse", cli.LOOK)
def _traverse(
    run: cli.RunArgument,
    image: Annotated[
        str | None, cli.option("Start image: file, example index, square, ellipse or heart.")
    ] = None,
    reach: Annotated[
        float, cli.option("Each latent runs from -RANGE to RANGE.", 0.1, name="--range", max=100.0)
    ] = 3.0,
    columns: Annotated[int, cli.option("Images per row.", 2, max=20)] = 10,
    rows: Annotated[int, cli.option("Maximum number of latents, largest KL first.", 1)] = 20,
    animate: Annotated[
        bool, cli.flag("--animate", "Write a GIF too, of at most ten latents.")
    ] = False,
    rate: cli.Rate = None,
    out: cli.Out = None,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Draw the effect of each latent, ordered by KL.

    2D Shapes start from the paper's three images.
    """
    from controlvae.lab.api.media import traverse
    from controlvae.lab.cli.format import print_media

    files: dict[str, Any] = {"rate": rate, "out": out, "device": device, "data_root": data_root}
    grid: dict[str, Any] = {"reach": reach, "columns": columns, "rows": rows}
    print_media(traverse(run, image=image, animate=animate, **grid, **files))


@cli.command("reconstruct", cli.LOOK)
def _reconstruct(
    run: cli.RunArgument,
    columns: Annotated[int, cli.option("Number of images or sentences.", 1, max=40)] = 12,
    rate: cli.Rate = None,
    out: cli.Out = None,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Draw data above its reconstructions, or print sentences and what their codes decode to."""
    from controlvae.lab.api.media import reconstruct
    from controlvae.lab.cli.format import print_media

    files: dict[str, Any] = {"rate": rate, "out": out, "device": device, "data_root": data_root}
    print_media(reconstruct(run, columns, **files))


@cli.command("sample", cli.LOOK)
def _sample(
    run: cli.RunArgument,
    count: Annotated[int, cli.option("Number of samples.", 1)] = 64,
    seed: Annotated[int, cli.option("Seed of the draws.", 0)] = 0,
    columns: Annotated[int | None, cli.option("Images per row. Default: a square.", 1)] = None,
    temperature: Annotated[
        float | None, cli.option("Temperature of sentences. Default: 1.")
    ] = None,
    top_k: Annotated[int | None, cli.option("Sentences: draw from the K likeliest words.")] = None,
    top_p: Annotated[
        float | None, cli.option("Sentences: draw from the words with this probability.")
    ] = None,
    beam: Annotated[int | None, cli.option("Sentences: width of a beam search.")] = None,
    rate: cli.Rate = None,
    out: cli.Out = None,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Draw from the prior N(0, I): a grid of images, or sentences."""
    from controlvae.lab.api.media import sample
    from controlvae.lab.cli.format import print_media

    words: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    files: dict[str, Any] = {"rate": rate, "out": out, "device": device, "data_root": data_root}
    print_media(sample(run, count, seed=seed, columns=columns, beam=beam, **words, **files))


@cli.command("interpolate", cli.LOOK)
def _interpolate(
    run: cli.RunArgument,
    start: Annotated[
        str | None,
        cli.option("Example index, image file or sentence. Default: random.", name="--from"),
    ] = None,
    end: Annotated[str | None, cli.option("The other end.", name="--to")] = None,
    columns: Annotated[int, cli.option("Number of images or sentences.", 2, max=40)] = 10,
    rate: cli.Rate = None,
    out: cli.Out = None,
    device: cli.Device = "auto",
    data_root: cli.DataRoot = None,
) -> None:
    """Decode codes between two examples: a row of images, or sentences."""
    from controlvae.lab.api.media import interpolate
    from controlvae.lab.cli.format import print_media

    files: dict[str, Any] = {"rate": rate, "out": out, "device": device, "data_root": data_root}
    print_media(interpolate(run, start, end, columns=columns, **files))
