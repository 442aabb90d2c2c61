"""Steering and the latent explorer of the dashboard in a real Chromium, with real training."""

import contextlib
import json
import subprocess

import pytest
from browser import CHROMIUM
from command import ONE_THREAD, command, within
from dashboard_server import served_page, view_of
from tiny import sets

from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.requests import request_target

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
IMAGES = sets(
    "training.steps=60",
    "training.batch=16",
    "training.log_every=5",
    "data.images=256",
    "model.channels=(4,4,4)",
    "model.hidden=16",
)
RATES = (*IMAGES, *sets("rates=RateRange(3,24,bins=4)", "control=Auto(8.5)"))
TEXTS = sets("training.steps=40", "training.batch=8", "data.sentences=200")
STATUS = "document.querySelector('#steer-status').innerText"
STAGES = "document.querySelector('#steer-stages').innerText.replaceAll('\\n', ' ')"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train small models of images, at one rate and at many, and one of sentences."""
    root = tmp_path_factory.mktemp("runs")
    for name, preset, options in (
        ("images", "shapes2d-quick", IMAGES),
        ("rates", "shapes2d-quick", RATES),
        ("texts", "text-quick", TEXTS),
    ):
        done = within("train", preset, *options, "--device", "cpu", "--run", root / name, cwd=root)
        assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="module")
def page(runs):
    with served_page(runs) as address:
        yield address


def opened(tab, page, run):
    tab.resize(1400, 900)
    tab.open(view_of(page, run))
    tab.wait("document.querySelectorAll('#stage canvas').length >= 2")
    return tab


@contextlib.contextmanager
def training(run, steps=100_000):
    """Train a run in a process of its own until the block ends."""
    line = command(
        "train", "shapes2d-quick", *IMAGES, *sets(f"training.steps={steps}"), "--device", "cpu"
    )
    process = subprocess.Popen(
        [*line, "--checkpoint-every", "2s", "--run", str(run)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ONE_THREAD,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def move(tab, target):
    """Type a target and press Enter."""
    tab.run(
        "(() => { const field = document.querySelector('#steer-field'); field.focus();"
        f" field.value = '{target}'; field.dispatchEvent(new Event('input')); }})()"
    )
    tab.press("Enter", 13)


def test_target_is_moved_from_the_page_while_a_run_trains(tab, page, runs):
    run = runs / "steered"
    with training(run):
        tab.resize(1400, 900)
        tab.open(view_of(page, "steered"))
        tab.wait("document.title.startsWith('● steered')", seconds=60)
        tab.wait("!document.querySelector('#steer').hidden")
        shown = "document.querySelector('#steer-field').value"
        assert tab.run(shown) == "18"
        assert tab.run("document.querySelector('#steer-slider').ariaValueText") == "18 nats"

        move(tab, 10)
        applied = tab.wait(f"{STAGES}.match(/asked 10 applied at step ([\\d,]+)/)")
        (event,) = [each for each in RunFolder(run).events() if each["event"] == "target moved"]
        assert (event["target"], f"{event['step']:,}") == (10.0, applied[1])
        tab.wait("document.querySelector('#focus-line').innerText.includes('PI(target=10')")
        tab.wait(f"{STATUS}.match(/Reached 10|approaching 10|out of reach/)")
        tab.wait("document.querySelector('#stage .mark.target') !== null")

        # Someone else moves it: the field follows.
        request_target(RunFolder(run), 12)
        tab.wait(f"{shown} === '12'")

        # Absurd values are refused in words, and nothing is asked for.
        move(tab, 1e9)
        tab.wait("document.querySelector('#steer-note').className === 'refused'")
        assert "1e+09" in tab.run("document.querySelector('#steer-note').innerText")
        tab.run("document.querySelector('#steer-undo').click()")
        assert tab.run(shown) == "12"

        # State, target, KL per latent and the explorer are on the first screen.
        tab.wait("document.querySelectorAll('#latents .latent').length === 10", seconds=60)
        for part in ("#focus-state", "#steer", "#stage .chart:nth-child(2)", "#explorer header"):
            box = f"document.querySelector('{part}').getBoundingClientRect()"
            assert tab.run(f"{box}.top >= 0 && {box}.bottom <= 900"), part
        rows = tab.run(
            "[...document.querySelectorAll('#latents .latent')].filter("
            "(row) => row.getBoundingClientRect().bottom <= 900).length"
        )
        assert rows >= 8

        # A new checkpoint keeps the slider in use, its value and its images.
        tab.run("window.slider = document.querySelector('.latent input'); slider.focus()")
        tab.press("ArrowRight", 39)
        value = tab.run("slider.value")
        step = tab.run("document.querySelector('#explorer-step').innerText")
        tab.wait(f"document.querySelector('#explorer-step').innerText !== {json.dumps(step)}")
        assert tab.run("document.activeElement === slider")
        assert tab.run("slider.value") == value
    tab.wait("!document.title.startsWith('●')")
    assert tab.complaints == []


def test_read_only_page_moves_nothing(tab, runs):
    folder = RunFolder(runs / "stopped")
    if not folder.path.exists():
        done = within(
            *("train", "shapes2d-quick", *IMAGES, *sets("training.steps=100000")),
            *("--time-limit", "1s", "--device", "cpu", "--run", folder.path),
            cwd=runs,
        )
        assert done.returncode == 0, done.stderr
    with served_page(runs, read_only=True) as address:
        opened(tab, address, "stopped")
        tab.wait("!document.querySelector('#steer').hidden")
        assert tab.run("document.querySelector('#steer fieldset').disabled")
        assert "read-only" in tab.run("document.querySelector('#steer-note').innerText")
        status = tab.run(
            "fetch('/target?run=stopped', {method: 'POST', headers: {'content-type': 'application/json'},"
            " body: '{\"target\": 9}'}).then((answer) => answer.status)"
        )
    assert status == 403
    assert not folder.request_file.exists()


def test_latents_of_an_image_are_moved_reset_and_drawn(tab, page):
    opened(tab, page, "images")
    decoded = "document.querySelector('img.decoded')"
    tab.wait(f"{decoded}?.naturalWidth > 0")
    tab.wait("document.querySelector('img.pair').naturalWidth > 0")
    slider = "document.querySelector('.latent input')"
    before, mean = tab.run(f"{decoded}.src"), float(tab.run(f"{slider}.value"))
    tab.run(f"{slider}.focus()")
    tab.press("ArrowRight", 39)
    tab.wait(f"{decoded}.src !== {json.dumps(before)} && {decoded}.complete")
    value = tab.run("document.querySelector('.latent .value').innerText").replace("−", "-")
    assert float(value) == pytest.approx(mean + 0.05, abs=0.03)
    assert tab.run(f"{slider}.ariaValueText.includes('posterior')")
    tab.wait("document.querySelector('.strip').naturalWidth > 0")
    tab.run("document.querySelector('#reset-code').click()")
    tab.wait(f"{decoded}.src === {json.dumps(before)}")
    buttons = "[...document.querySelectorAll('#explorer-buttons button')]"
    tab.run(f"{buttons}.find((b) => b.innerText === 'Draw from the prior').click()")
    tab.wait("document.querySelector('#code-source').innerText.match(/^prior, seed \\d+$/)")
    source = tab.run("document.querySelector('img.pair').src")
    tab.run(f"{buttons}.find((b) => b.innerText === 'Another example').click()")
    tab.wait(f"document.querySelector('img.pair').src !== {json.dumps(source)}")
    tab.wait("document.querySelector('#code-source').innerText.startsWith('example')")
    assert tab.complaints == []


def test_rate_slider_decodes_at_another_rate(tab, page):
    opened(tab, page, "rates")
    tab.wait("document.querySelector('img.decoded')?.naturalWidth > 0")
    assert tab.run("document.querySelector('#steer').hidden")  # it has many set points
    slider = "document.querySelector('.rate input')"
    ends = tab.run(f"[{slider}.min, {slider}.max].map(Number)")
    assert ends[0] <= 3
    assert ends[1] >= 24
    tab.run(
        f"{slider}.value = 20; {slider}.dispatchEvent(new Event('input'));"
        f"{slider}.dispatchEvent(new Event('change'))"
    )
    tab.wait("new URL(document.querySelector('img.decoded').src).searchParams.get('rate')")
    assert tab.run(f"{slider}.ariaValueText.endsWith('nats')")
    tab.wait("new URL(document.querySelector('img.pair').src).searchParams.get('rate')")
    assert tab.complaints == []


def test_sentence_is_written_anew_as_a_latent_moves(tab, page):
    opened(tab, page, "texts")
    sentence = "document.querySelector('.sentence.decoded').innerText"
    tab.wait(f"document.querySelector('.sentence.decoded') && {sentence}")
    assert tab.run("document.querySelector('.texts .sentence').innerText.length > 3")
    tab.run(
        "document.querySelectorAll('.latent input').forEach((s) => { s.value = 3;"
        " s.dispatchEvent(new Event('input')); })"
    )
    asked = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/sentence?'))"
    tab.wait(f"{asked}.some((e) => decodeURIComponent(e.name).includes('code=3,3,3'))")
    latest = f"{asked}.at(-1).name"
    written = tab.run(f"fetch({latest}).then((answer) => answer.json())")["sentence"]
    tab.wait(f"{sentence} === {json.dumps(written or '(empty)')}")
    tab.run("document.querySelector('.texts summary').click()")
    tab.wait("document.querySelectorAll('.texts table tr').length > 2")
    assert tab.complaints == []


def test_every_logged_column_has_a_chart(tab, page, runs):
    opened(tab, page, "images")
    tab.run("document.querySelector('#more').open = true")
    columns = RunFolder(runs / "images").last_record().keys() - {"step", "kl_per_latent", "target"}
    assert {"kl_sd", "saturated"} <= columns
    charts = "[...document.querySelectorAll('.chart')].filter((c) => c.querySelector('canvas'))"
    titles = f"{charts}.map((chart) => chart.getAttribute('aria-labelledby').slice(6))"
    tab.wait(f"{titles}.length >= {len(columns) + 1}")
    assert columns | {"latents"} == set(tab.run(titles))
    # A curve is hidden by keyboard, and in every chart.
    button = "document.querySelector('#grid .legend button[aria-label], #grid .legend button')"
    tab.run(f"{button}.focus()")
    tab.press("Enter", 13)
    tab.wait(f"{button}.ariaPressed === 'false'")
    assert "hidden=images" in tab.run("location.hash")
    assert tab.complaints == []
