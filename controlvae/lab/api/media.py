"""Images and sentences of a run: samples, reconstructions, traversals and interpolations."""

from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import UserError
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.device import pick_device
from controlvae.lab.evaluation.cache import load_for_evaluation
from controlvae.lab.evaluation.text import (
    interpolate_sentences,
    reconstruct_sentences,
    resolve_sentences,
    sample_sentences,
)
from controlvae.lab.io import write_text
from controlvae.lab.plots import animation, traversal
from controlvae.lab.plots.figure_files import save_figure, save_pixels
from controlvae.lab.plots.image_grid import plot_reconstructions
from controlvae.lab.plots.samples import make_sample_grid, plot_interpolation, select_endpoints
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun, as_folder, image_model, on_unseen_examples

RunSource = LoadedRun | RunFolder | str | Path


class MediaResult(NamedTuple):
    """Files that were written, or the text of a model of sentences."""

    files: list[Path]
    text: str | None = None
    unknown_words: list[str] = []  # noqa: RUF012 - of the user's sentences


def sample(
    run: RunSource,
    count: int = 64,
    *,
    seed: int = 0,
    columns: int | None = None,
    rate: float | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    **generation: Any,
) -> MediaResult:
    """Draw from the prior N(0, I): an image grid, or sentences.

    Args:
        run: Run or run folder.
        count: Number of samples.
        seed: Seed of the draws.
        columns: Images per row. The default makes a square.
        rate: Rate in nats, for a rate-conditioned run.
        out: File to write. The default is `figures/samples.png` for images, none for sentences.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        data_root: Data folder that is searched first.
        **generation: `temperature`, `top_k`, `top_p` or `beam` of sentences.
    """
    loaded = _load(run, device, data_root, rate)
    options = {name: value for name, value in generation.items() if value is not None}
    path = loaded.folder.path
    if isinstance(loaded.examples, SentenceDataset):
        if columns is not None:
            raise UserError(f"--columns is for images; {path} is a model of sentences")
        return _text_result("\n".join(sample_sentences(loaded, count, seed=seed, **options)), out)
    image_model(loaded)  # refuses a model of dialogs with the command for it
    if options:
        name = next(iter(options)).replace("_", "-")
        raise UserError(f"--{name} is for sentences; {path} is a model of images")
    pixels = make_sample_grid(loaded, count, seed=seed, columns=columns)
    return MediaResult(
        [save_pixels(pixels, _path(loaded, out, "samples.png", rate), step=loaded.step)]
    )


def reconstruct(
    run: RunSource,
    columns: int = 12,
    *,
    rate: float | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
) -> MediaResult:
    """Reconstruct examples of the test set: an image with data above reconstructions, or sentences.

    Args:
        run: Run or run folder.
        columns: Number of examples.
        rate: Rate in nats, for a rate-conditioned run.
        out: File to write. The default is `figures/reconstruction.png`, none for sentences.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        data_root: Data folder that is searched first.
    """
    loaded = _load(run, device, data_root, rate)
    if isinstance(loaded.examples, SentenceDataset):
        pairs = reconstruct_sentences(on_unseen_examples(loaded), columns)
        lines = (f"data  {pair.sentence}\ncode  {pair.read_back}" for pair in pairs)
        return _text_result("\n\n".join(lines), out)
    figure, path = (
        plot_reconstructions(loaded, columns),
        _path(loaded, out, "reconstruction.png", rate),
    )
    return MediaResult([save_figure(figure, path, step=loaded.step)])


def traverse(
    run: RunSource,
    *,
    image: str | None = None,
    reach: float = 3.0,
    columns: int = 10,
    rows: int = 20,
    animate: bool = False,
    rate: float | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
) -> MediaResult:
    """Draw the effect of each latent, ordered by KL.

    Args:
        run: Run or run folder.
        image: Start image: a file, the index of an example, or a shape of 2D Shapes.
        reach: Each latent runs from -reach to reach.
        columns: Images per row.
        rows: Maximum number of latents.
        animate: Write a GIF too, of at most ten latents.
        rate: Rate in nats, for a rate-conditioned run.
        out: File to write. The default is `figures/traversal.png`.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        data_root: Data folder that is searched first.
    """
    file = None if out is None else Path(out)
    if animate and file is not None and file.suffix.lower() == ".gif":
        raise UserError(
            f"--out is the still image; with --out {file.with_suffix('.png')}, "
            f"--animate writes {file} too"
        )
    loaded = _load(run, device, data_root, rate)
    # One file has room for one image: the first.
    starts = [image] if image is not None or out is not None else traversal.start_images(loaded)
    files = []
    for start in starts:
        name = f"traversal-{Path(start).stem}.png" if start else "traversal.png"
        path = _path(loaded, out, name, rate)
        figure = traversal.plot_traversal(
            loaded, image=start, reach=reach, columns=columns, rows=rows
        )
        files.append(save_figure(figure, path, step=loaded.step))
        if animate:
            gif = path.with_suffix(".gif")
            files.append(
                animation.animate_traversal(loaded, gif, image=start, reach=reach, rows=rows)
            )
    return MediaResult(files)


def interpolate(
    run: RunSource,
    start: str | None = None,
    end: str | None = None,
    *,
    columns: int = 10,
    rate: float | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
) -> MediaResult:
    """Decode codes between two examples: a row of images, or sentences.

    Args:
        run: Run or run folder.
        start: Index of an example, an image file, or a sentence. The default is a random example.
        end: Another one.
        columns: Number of images or sentences.
        rate: Rate in nats, for a rate-conditioned run.
        out: File to write. The default is in `figures`, none for sentences.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        data_root: Data folder that is searched first.
    """
    loaded = _load(run, device, data_root, rate)
    if isinstance(loaded.examples, SentenceDataset):
        rows, unknown_words = resolve_sentences(loaded, start, end)
        first, last = (loaded.examples.to_text(row) for row in rows)
        lines = (f"      {line}" for line in interpolate_sentences(loaded, rows, columns))
        text = "\n".join([f"from  {first}", *lines, f"to    {last}"])
        return _text_result(text, out)._replace(unknown_words=unknown_words)
    first, last = (image.short for image in select_endpoints(loaded, start, end))
    path = _path(loaded, out, f"interpolation-{first}-{last}.png", rate)
    figure = plot_interpolation(loaded, start, end, columns)
    return MediaResult([save_figure(figure, path, step=loaded.step)])


def _load(
    run: RunSource, device: str, data_root: str | Path | None, rate: float | None
) -> LoadedRun:
    root = None if data_root is None else Path(data_root)
    loaded = (
        run
        if isinstance(run, LoadedRun)
        else load_for_evaluation(as_folder(run), pick_device(device), root)
    )
    return loaded if rate is None else loaded.at_rate(rate)


def _path(run: LoadedRun, out: str | Path | None, name: str, rate: float | None) -> Path:
    if out is not None:
        return Path(out)
    file = run.folder.figures / name
    return file if rate is None else file.with_stem(f"{file.stem}-{rate:g}-nats")


def _text_result(text: str, out: str | Path | None) -> MediaResult:
    """Write the text to a file, if one is given."""
    if out is None:
        return MediaResult([], text)
    write_text(Path(out), text + "\n")
    return MediaResult([Path(out)], text)
