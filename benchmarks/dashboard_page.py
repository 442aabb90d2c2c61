"""Time until the pages of the dashboard and of TensorBoard show 300 runs, in a real Chromium.

python benchmarks/dashboard_page.py --rounds 3

Both get the same numbers. Each server has read all runs before a page is opened, so the times are
those of a page that somebody opens on a server that is running.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboard import TEMPLATE, Server, get, is_loaded, wait_until, write_event_files
from many_runs import make_runs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from browser import start_chromium

SETTLE_SECONDS = 3.0  # between the parts of a measurement
LONG_LINES = 5_000  # of the logs whose curves are zoomed and smoothed
LONG_RUNS = 20
LEGEND = 24  # entries of a legend; the target has one, too

DASHBOARD_LIST = "document.querySelectorAll('.run').length >= {count}"
DASHBOARD_CURVE = "document.querySelector('#stage canvas')?.ariaLabel?.includes('{name}')"
DASHBOARD_ALL = (
    "document.querySelector('#stage .legend .quiet')?.innerText.startsWith('and {rest} more')"
)
# TensorBoard lists the runs, and below each curve's card the selected ones again.
BOARD_ROWS = "document.querySelectorAll('tb-data-table-content-row').length"
# Milliseconds of every tenth part of a movement, each to the end of its frame.
FRAMES = """(async () => {{
  const slider = document.querySelector('#smooth'), times = [];
  for (let part = 1; part <= 10; part++) {{
    const began = performance.now();
    {move}
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    times.push(performance.now() - began);
  }}
  return times;
}})()"""
SMOOTH = "slider.value = part / 12; slider.dispatchEvent(new Event('input'));"
ZOOM = (
    "location.hash = location.hash.replace(/&zoom=[^&]*/, '') + `&zoom=${1000 * part}..60000`;"
    "await new Promise((done) => setTimeout(done, 0));"
)


def seconds_until(tab: Any, script: str, act: Callable[[], object]) -> float:
    """Return the seconds from an action until an expression in the page is true."""
    began = time.monotonic()
    act()
    tab.wait(script, seconds=120)
    return time.monotonic() - began


def measure_dashboard(chromium: Any, address: str, count: int) -> dict[str, float]:
    """Measure the page of the dashboard."""
    numbers = {}
    with chromium.tab() as tab:
        tab.resize(1400, 900)
        page = f"{address}/#run=group-0/seed-1"
        listed = DASHBOARD_LIST.format(count=count)
        numbers["all runs listed"] = seconds_until(tab, listed, lambda: tab.open(page))
    with chromium.tab() as tab:
        tab.resize(1400, 900)
        first = DASHBOARD_CURVE.format(name="seed-1:")
        numbers["first curve"] = seconds_until(tab, first, lambda: tab.open(page))
        time.sleep(SETTLE_SECONDS)
        numbers["one more curve, after a tick"] = statistics.median(
            seconds_until(
                tab,
                DASHBOARD_CURVE.format(name=f"seed-{seed}:"),
                lambda seed=seed: tab.run(
                    f"document.querySelector('[data-run=\"group-1/seed-{seed}\"]').click()"
                ),
            )
            for seed in range(2, 7)
        )
        everything = DASHBOARD_ALL.format(rest=count + 1 - LEGEND)
        numbers["curves of all runs"] = seconds_until(
            tab, everything, lambda: tab.run("document.querySelector('#all').click()")
        )
    return numbers


def measure_tensorboard(chromium: Any, address: str, count: int) -> dict[str, float]:
    """Measure the page of TensorBoard, which shows all runs when it is opened."""
    numbers = {}
    with chromium.tab() as tab:
        tab.resize(1400, 900)
        listed = f"{BOARD_ROWS} >= {count}"
        numbers["all runs listed"] = seconds_until(tab, listed, lambda: tab.open(address))
    with chromium.tab() as tab:
        tab.resize(1400, 900)
        everything = f"{BOARD_ROWS} >= {2 * count}"
        whole = seconds_until(tab, everything, lambda: tab.open(address))
        numbers["first curve"] = whole  # its first chart appears with the curves of all runs
        numbers["curves of all runs"] = whole
    return numbers


def measure_frames(chromium: Any, address: str) -> dict[str, float]:
    """Measure the time of a frame while 20 long curves are smoothed and zoomed."""
    with chromium.tab() as tab:
        tab.resize(1400, 900)
        runs = "&".join(f"run=group-{number % 10}/seed-{number // 10 + 1}" for number in range(20))
        tab.open(f"{address}/#{runs}")
        tab.wait("document.querySelectorAll('#stage .legend button').length >= 20", seconds=120)
        time.sleep(SETTLE_SECONDS)
        return {
            "frame while smoothing": statistics.median(tab.run(FRAMES.format(move=SMOOTH))) / 1000,
            "frame while zooming": statistics.median(tab.run(FRAMES.format(move=ZOOM))) / 1000,
        }


def with_dashboard(root: Path, measure: Callable[[str], dict[str, float]]) -> dict[str, float]:
    """Call a function with the address of a dashboard over a folder."""
    command = [sys.executable, "-m", "controlvae", "dashboard", str(root), "--no-open", "--port"]
    server = Server([*command, "0"])
    try:
        assert server.process.stdout is not None
        line = server.process.stdout.readline().decode()
        address = line.split(": ")[1].split()[0].rstrip("/")
        get(address, "/settings", run="group-0/seed-1")  # the list has been read
        return measure(address)
    finally:
        server.stop()


def with_tensorboard(
    root: Path, count: int, tags: list[str], measure: Callable[[str], dict[str, float]]
) -> dict[str, float]:
    """Call a function with the address of a TensorBoard that has read all runs."""
    port = 6_100 + os.getpid() % 800
    program = Path(sys.executable).with_name("tensorboard")
    server = Server([str(program), "--logdir", str(root), "--port", str(port)])
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_loaded(address, count, tags))
        return measure(address)
    finally:
        server.stop()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--lines", type=int, default=500)
    options = parser.parse_args()
    count, found = options.count, {"dashboard": [], "TensorBoard": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        template, root, board, long = (
            Path(folder) / each for each in ("one", "runs", "tb", "long")
        )
        train = ["train", "shapes2d-quick", *TEMPLATE, "--device", "cpu", "--run", str(template)]
        subprocess.run(
            [sys.executable, "-m", "controlvae", *train], check=True, capture_output=True
        )
        tags = write_event_files(make_runs(template, root, count, options.lines), root, board)
        make_runs(template, long, LONG_RUNS, LONG_LINES)
        for _ in range(options.rounds):
            with start_chromium(Path(folder) / "chromium") as chromium:
                mine = with_dashboard(root, lambda at: measure_dashboard(chromium, at, count))
                mine |= with_dashboard(long, lambda at: measure_frames(chromium, at))
                found["dashboard"].append(mine)
                theirs = lambda at: measure_tensorboard(chromium, at, count)  # noqa: E731
                found["TensorBoard"].append(with_tensorboard(board, count, tags, theirs))
    print(f"# {count} runs of {options.lines} lines, {options.rounds} rounds: median (range)")
    print(f"# load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in found["dashboard"][0]:
        cells = [
            format_cell([each[name] for each in rounds if name in each])
            for rounds in found.values()
        ]
        print(f"{name:32}{cells[0]:>24}{cells[1]:>24}")


def format_cell(values: list[float]) -> str:
    """Format seconds as their median and range."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f}) s"


if __name__ == "__main__":
    main()
