"""Columns of logs: the server sends those that are asked for, and the page asks for what it shows."""

import base64
import urllib.parse

import pytest
from browser import CHROMIUM
from dashboard_server import served_page, view_of
from dashboards import events, get
from logged_runs import logged_run

from controlvae.lab.runs.folder import RunFolder

PRESET = "shapes2d-control-16"
SEEDS = range(1, 5)
# Keeps the addresses of all streams.
SPY = """window.streams = [];
window.EventSource = class extends EventSource {
  constructor(address) { super(address); window.streams.push(address); }
};"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in SEEDS:
        logged_run(root, PRESET, seed, 20_000, evaluated=False, elbo=-100.0 - seed, kl_sd=0.1)
    return root


@pytest.fixture(scope="module")
def page(runs):
    with served_page(runs) as address:
        yield address.rstrip("/")


def name(seed):
    return f"{PRESET}/seed-{seed}"


def logs(page, count, **parameters):
    """Return the first logs of a stream by their runs."""
    found = {}
    with get(page, "/events", **parameters) as stream:
        for kind, content in events(stream):
            if kind == "log":
                found[content["run"]] = content
            if len(found) == count:
                break
    return found


def test_server_sends_the_requested_columns(page, runs):
    chosen = [name(1), name(2)]
    found = logs(page, 2, run=chosen, columns="kl,nothing,beta", whole=name(2))
    some, whole = found[name(1)], found[name(2)]
    assert set(some["columns"]) == {"step", "kl", "beta"}
    assert set(some["names"]) == {"kl", "beta", "reconstruction", "target", "elbo", "kl_sd"}
    assert set(whole["columns"]) == {"step", "latents", *some["names"]}
    assert "names" not in whole
    records = RunFolder(runs / name(1)).records()
    assert some["columns"]["step"] == [record["step"] for record in records]
    assert some["columns"]["beta"] == pytest.approx([r["beta"] for r in records], rel=1e-4)
    (old,) = logs(page, 1, run=name(1)).values()
    assert set(old["columns"]) == set(whole["columns"])
    assert set(logs(page, 1, run=name(1), columns="")[name(1)]["columns"]) == {"step"}


def streams(tab):
    """Return the runs, the columns and the whole runs that each stream so far asked for."""
    queries = [
        urllib.parse.parse_qs(urllib.parse.urlsplit(each).query) for each in tab.run("streams")
    ]
    return [
        (q.get("run", []), set(",".join(q.get("columns", [])).split(",")), q.get("whole"))
        for q in queries
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_page_asks_for_the_columns_of_the_charts_that_were_seen(tab, page, runs):
    tab.resize(390, 500, phone=True)
    tab.send("Page.addScriptToEvaluateOnNewDocument", source=SPY)
    tab.send("Page.enable")
    tab.open(view_of(page + "/", *map(name, (1, 2))))

    def shows(chart, seed):
        return f"document.querySelector('[aria-labelledby=\"chart-{chart}\"] canvas')?.ariaLabel.includes('seed-{seed}:')"

    tab.wait(shows("kl", 2))
    assert all("kl_sd" not in columns for _, columns, _ in streams(tab))
    assert {tuple(whole) for runs, _, whole in streams(tab) if whole} == {(name(1),)}

    # A further run comes with what is on the screen alone.
    before = len(streams(tab))
    tab.run(f"document.querySelector('[data-run=\"{name(3)}\"]').click()")
    tab.wait(shows("kl", 3))
    assert streams(tab)[before:] == [([name(3)], {"kl", "target"}, None)]
    assert not tab.run(shows("beta", 3))

    # Scrolling asks for the rest of this run, once.
    tab.run("document.querySelector('[aria-labelledby=\"chart-beta\"]').scrollIntoView()")
    tab.wait(shows("beta", 3))
    (further,) = streams(tab)[before + 1 :]
    assert further[0] == [name(3)]
    assert "beta" in further[1]
    assert not further[1] & {"kl", "target", "kl_sd"}

    # The charts under "more" ask when they are opened.
    before = len(streams(tab))
    tab.run("document.querySelector('#more').open = true; 0")
    tab.run("document.querySelector('[aria-labelledby=\"chart-kl_sd\"]').scrollIntoView()")
    tab.wait(shows("kl_sd", 3))
    assert [(set(runs), columns) for runs, columns, _ in streams(tab)[before:]][-1][1] == {"kl_sd"}
    assert {run for runs, *_ in streams(tab)[before:] for run in runs} == {name(2), name(3)}
    assert tab.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_download_of_an_unseen_chart_holds_all_curves(tab, page, runs):
    tab.resize(390, 500, phone=True)
    tab.open(view_of(page + "/", name(1)))
    tab.wait("document.querySelector('[aria-labelledby=\"chart-beta\"] canvas') !== null")
    tab.run("document.querySelector('#all').click()")
    tab.run(
        """(() => { URL.createObjectURL = (blob) => {
          const reader = new FileReader();
          reader.onload = () => { window.saved = reader.result.split(',')[1]; };
          reader.readAsDataURL(blob);
          return '#';
        };
        HTMLAnchorElement.prototype.click = () => {};
        document.querySelector('[aria-labelledby="chart-beta"] .menu button').click();
    })()"""
    )
    head, *lines = base64.b64decode(tab.wait("window.saved")).decode().splitlines()
    assert head == "step," + ",".join(f"seed-{seed}" for seed in SEEDS)
    records = RunFolder(runs / name(4)).records()
    assert [float(line.split(",")[4]) for line in lines] == pytest.approx(
        [record["beta"] for record in records], rel=1e-4
    )
