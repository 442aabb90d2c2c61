"""Figures: curves, traversals, animations, mutual information, and the files they go to."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from command import within
from logged_runs import LATENTS, METRICS
from PIL import Image

from controlvae.errors import UserError
from controlvae.lab.plots.animation import animate_traversal
from controlvae.lab.plots.curves import RunTrace, plot_beta, plot_controlled_term, plot_latent_kl
from controlvae.lab.plots.figure_files import read_step, save_figure, save_pixels
from controlvae.lab.plots.image_grid import (
    plot_compared_reconstructions,
    reconstruction_pixels_file,
    save_reconstructions,
)
from controlvae.lab.plots.mutual_information import (
    dominant_factors,
    format_latent,
    plot_mutual_information,
)
from controlvae.lab.plots.samples import make_sample_grid
from controlvae.lab.plots.traversal import plot_traversal, traverse_latents
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import load_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a small model for a few steps."""
    path = tmp_path_factory.mktemp("trained") / "run"
    sets = ["--set", "training.steps=40", "--set", "data.images=500"]
    done = within(
        "train", "shapes2d-quick", *sets, "--run", path, "--device", "cpu", cwd=path.parent
    )
    assert done.returncode == 0, done.stderr
    return load_run(RunFolder(path))


def test_traversal_rows_are_ordered_by_kl(trained):
    traversal = traverse_latents(trained, 7, [-3.0, 0.0, 3.0])
    assert traversal.kl == sorted(traversal.kl, reverse=True)
    assert sorted(traversal.latents) == list(range(trained.model.latents))
    with torch.no_grad():
        code = trained.model.encode(trained.examples.batch(torch.tensor([7]))).mean
        code[0, traversal.latents[1]] = 3.0
        image = torch.sigmoid(trained.model.decode(code))[0, 0].numpy()
    np.testing.assert_allclose(traversal.images[1, 2, ..., 0], image, atol=1e-6)
    label = plot_traversal(trained, image=7, rows=1).axes[0].get_xlabel()
    assert "largest KL out of 10" in label


@pytest.mark.parametrize(("reach", "ends"), [(3.0, ["−3.0", "+3.0"]), (0.1, ["−0.10", "+0.10"])])
def test_traversal_columns_have_distinct_labels(trained, reach, ends):
    ticks = plot_traversal(trained, reach=reach, columns=10).axes[0].get_xticklabels()
    texts = [tick.get_text() for tick in ticks]
    assert (texts[0], texts[-1], len(set(texts))) == (*ends, 10)


def test_seed_images_of_the_paper_need_all_shapes(trained, tmp_path):
    with pytest.raises(UserError, match="737,280"):
        plot_traversal(trained, image="heart")


def test_animation_goes_back_and_forth_in_a_loop(trained, tmp_path):
    path = animate_traversal(trained, tmp_path / "figures" / "traversal.gif")
    small = animate_traversal(trained, tmp_path / "two.gif", rows=2)
    with Image.open(small) as two, Image.open(path) as gif:
        assert two.width < gif.width
        frames = []
        for number in range(gif.n_frames):
            gif.seek(number)
            frames.append(np.asarray(gif.convert("L")))
        assert (gif.n_frames, gif.info["loop"]) == (60, 0)
    assert all(np.array_equal(frames[k], frames[-k]) for k in range(1, 30))
    assert not np.array_equal(frames[0], frames[30])


def test_image_files_record_their_step(trained, tmp_path):
    earlier = replace(trained, step=7)
    paths = [
        animate_traversal(earlier, tmp_path / "traversal.gif"),
        save_figure(plot_traversal(earlier), tmp_path / "traversal.png", step=7),
        save_pixels(make_sample_grid(earlier), tmp_path / "samples.png", step=7),
    ]
    assert [read_step(path) for path in paths] == [7, 7, 7]
    assert read_step(save_pixels(make_sample_grid(earlier), tmp_path / "bare.png")) is None


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PDF", b"%PDF")],
)
def test_figure_format_follows_the_suffix(tmp_path, suffix, start):
    records = [{"step": n, "kl": 1.0, "target": 2.0} for n in (1, 2)]
    files = [
        save_figure(
            plot_controlled_term([RunTrace("a", records)]), tmp_path / f"{n}{suffix}", step=7
        )
        for n in (1, 2)
    ]
    first, second = (path.read_bytes() for path in files)
    assert first.startswith(start)
    assert first == second
    assert re.search(rb"controlvae step 7", first)


@pytest.mark.parametrize("name", ["figure", "figure.docx"])
def test_unknown_figure_format_is_refused(tmp_path, name):
    records = [{"step": n, "kl": 1.0, "target": 2.0} for n in (1, 2)]
    with pytest.raises(UserError, match=name):
        save_figure(plot_controlled_term([RunTrace("a", records)]), tmp_path / name)


def test_compared_reconstructions_share_one_data_row(trained, tmp_path):
    files = {}
    for name in ("a", "b"):
        figure = save_reconstructions(trained, tmp_path / name / "reconstruction.png")
        files[name] = reconstruction_pixels_file(figure)
        assert read_step(files[name]) == trained.step
    figure = plot_compared_reconstructions(files)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["data", "a", "b"]
    with Image.open(files["b"]) as image:
        pixels = 255 - np.asarray(image)
    save_pixels(pixels, files["b"])
    assert plot_compared_reconstructions(files) is None


def test_latents_are_named_by_their_dominant_factor():
    assert dominant_factors(METRICS) == [None, "x", "shape"]
    # As shares of the entropies ln 3 and ln 32, 0.6 nats are more than 1.2. Below 0.1 nats a
    # latent has no name.
    score = METRICS["rmig"] | {
        "mutual_information": [[0.09, 0.6, 0.0], [0.0, 1.2, 2.5]],
        "entropies": [1.1, 3.5],
    }
    assert dominant_factors({"rmig": score}) == [None, "shape", "x"]
    assert dominant_factors({"step": 3, "kl_per_latent": LATENTS}) == []


def test_heat_map_is_ordered_by_kl():
    axis = plot_mutual_information(METRICS).axes[0]
    cells = [text.get_text() for text in axis.texts]
    assert cells == ["0.02", "0.60", "0.00", "2.50", "0.40", "0.00"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["shape", "x"]


@pytest.mark.parametrize("latents", [2, 10, 500])
def test_heat_map_fits_its_page(latents):
    score = {
        "per_factor": {"x": 0.1},
        "mutual_information": [[0.001] * latents],
        "estimator": "an estimator " * 8,
    }
    figure = plot_mutual_information({"kl_per_latent": [0.5] * latents, "rmig": score})
    figure.draw_without_rendering()
    assert figure.bbox_inches.width < 12
    texts = [*figure.texts, figure.axes[0].xaxis.label, *figure.axes[0].get_yticklabels()]
    corners = np.concatenate([text.get_window_extent().get_points() for text in texts])
    assert (corners >= -0.5).all()
    assert (corners <= figure.bbox.max + 0.5).all()
    (mesh,) = figure.axes[0].collections
    assert mesh.get_facecolors()[:, :3].min() > 0.9  # negligible information is pale


@pytest.mark.parametrize(("count", "unused", "others"), [(10, 2, 0), (200, 8, 181)])
def test_legend_of_latents_fits_its_figure(count, unused, others):
    nats = [0.1 * (latent + 1) for latent in range(count - unused)]
    log = [{"step": step, "kl_per_latent": nats + [0.0] * unused} for step in (1, 2)]
    figure = plot_latent_kl(RunTrace("run", log))
    figure.draw_without_rendering()
    legend, page = figure.axes[0].get_legend(), figure.bbox
    extent = legend.get_window_extent()
    assert extent.y0 >= page.y0
    assert extent.x1 <= page.x1
    texts = [text.get_text() for text in legend.get_texts()]
    grey = [f"{others} others"] if others else []
    assert texts[-len(grey) - 1 :] == [*grey, f"{unused} below 0.01 nats"]
    assert texts[0] == format_latent(len(nats) - 1, [])  # the one of largest KL


@pytest.mark.parametrize("length", [12, 90])
def test_legend_of_many_runs_covers_no_line(length):
    log = [{"step": step, "kl": 3.0, "target": 4.0} for step in (1, 2)]
    figure = plot_controlled_term([RunTrace(f"{run:0{length}}", log) for run in range(25)])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    extent, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= extent.x0
    assert extent.x1 <= page.x1
    assert extent.y1 <= page.y1
    assert extent.y0 >= figure.axes[0].bbox.y1


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([(10, 100, 0.0), (100, 50, 0.0)], ["target"]),  # the shorter run has more records
        ([(1, 3_100, 0.01), (1, 1_400, 0.01)], ["target"]),  # a ramp and an unfinished run
        ([(10, 100, 0.0), (10, 100, 0.1)], ["target of 0", "target of 1"]),
    ],
    ids=str,
)
def test_shared_target_is_one_line_of_full_length(runs, labels):
    traces = []
    for number, (every, lines, slope) in enumerate(runs):
        steps = [every * n for n in range(1, lines)]
        records = [{"step": step, "kl": 1.0, "target": 5.0 + slope * step} for step in steps]
        traces.append(RunTrace(str(number), records))
    lines = plot_controlled_term(traces).axes[0].lines
    targets = [line for line in lines if str(line.get_label()).startswith("target")]
    assert sorted(line.get_label() for line in targets) == labels
    longest = max(every * (lines - 1) for every, lines, _ in runs)
    assert max(line.get_xdata()[-1] for line in targets) == longest


def test_terms_are_drawn_where_they_add_up_to_beta():
    records = [
        {"step": 10 * n, "beta": 0.01 * n, "p": -2.0, "i": -3.0, "target": 4.0} for n in range(1, 5)
    ]
    [linear], [logarithmic] = (
        plot_beta([RunTrace("a", records)], law).axes for law in (False, True)
    )
    assert [len(axis.lines) for axis in (linear, logarithmic)] == [3, 1]
    assert logarithmic.get_yscale() == "log"
    assert logarithmic.get_ylim()[0] > 0
