"""Time and memory of the dashboard and of TensorBoard over the same 300 runs.

python benchmarks/dashboard.py --rounds 3

Both servers run alone, one after the other. TensorBoard gets the same numbers, in one event file per
run. Memory and CPU time are those of the process and its children.
"""

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from many_runs import make_runs

TEMPLATE = (
    *("--set", "training.steps=60", "--set", "training.log_every=5", "--set", "training.batch=16"),
    *("--set", "data.images=256", "--set", "model.channels=(4,4,4)", "--set", "model.hidden=16"),
)
CHOSEN = 10  # runs whose curves are requested
IDLE_SECONDS = 15.0
DEADLINE = 300.0


class Server:
    """A server under measurement."""

    def __init__(self, command: list[str]) -> None:
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def tree(self) -> list[int]:
        """Return the process and its descendants."""
        children: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(path.parent.name))
        found = [self.process.pid]
        for number in found:
            found += children.get(number, [])
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time so far."""
        ticks = 0
        for number in self.tree():
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Return the proportional set size, in which shared pages count once."""
        total = 0
        for number in self.tree():
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024

    def stop(self) -> None:
        """End the process and its children."""
        tree = self.tree()
        for number in reversed(tree):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, 9)
        self.process.wait()


def get(address: str, path: str, **parameters: Any) -> bytes:
    """Return the body of an answer."""
    query = urllib.parse.urlencode(parameters, doseq=True)
    with urllib.request.urlopen(f"{address}{path}?{query}", timeout=DEADLINE) as answer:
        return bytes(answer.read())


def first_event(address: str, kind: str, **parameters: Any) -> Any:
    """Return the content of the first server-sent event of a kind."""
    query = urllib.parse.urlencode(parameters, doseq=True)
    with urllib.request.urlopen(f"{address}/events?{query}", timeout=DEADLINE) as stream:
        for line in stream:
            if line == f"event: {kind}\n".encode():
                return json.loads(next(stream).removeprefix(b"data: "))
    raise RuntimeError(f"the stream has ended without {kind}")


def measure_dashboard(root: Path, names: list[str]) -> dict[str, float]:
    """Measure the dashboard over a folder of runs."""
    server = Server(
        [sys.executable, "-m", "controlvae", "dashboard", str(root), "--no-open", "--port", "0"]
    )
    try:
        assert server.process.stdout is not None
        address = server.process.stdout.readline().decode().split(": ")[1].split()[0].rstrip("/")
        get(address, "/")
        numbers = {"page served": time.monotonic() - server.began}
        runs = first_event(address, "runs")
        assert len(runs["runs"]) == len(names)
        numbers |= {"all runs listed": time.monotonic() - server.began}
        numbers |= {"CPU time until then": server.cpu_seconds()}
        numbers |= {"list again": seconds_of(lambda: first_event(address, "runs"))}
        numbers |= {
            "curves of a run": statistics.median(
                seconds_of(
                    lambda name=name: first_event(  # type: ignore[misc]
                        address, "log", run=name, version=runs["version"]
                    )
                )
                for name in names[:: len(names) // CHOSEN]
            )
        }
        with urllib.request.urlopen(f"{address}/events?version={runs['version']}", timeout=60):
            time.sleep(IDLE_SECONDS)  # it reads warnings first
            numbers |= idle_share(server)
        return numbers | {"memory": server.megabytes()}
    finally:
        server.stop()


def measure_tensorboard(root: Path, names: list[str], tags: list[str]) -> dict[str, float]:
    """Measure TensorBoard over a folder of event files."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = Path(sys.executable).with_name("tensorboard")
    server = Server([str(command), "--logdir", str(root), "--port", str(port)])
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: get(address, "/"))
        numbers = {"page served": time.monotonic() - server.began}
        # Runs appear while their files are read; a run is there when it has its last tag.
        wait_until(lambda: is_loaded(address, len(names), tags))
        numbers |= {"all runs listed": time.monotonic() - server.began}
        numbers |= {"CPU time until then": server.cpu_seconds()}
        path = "/data/plugin/scalars/tags"
        numbers |= {"list again": seconds_of(lambda: get(address, path))}
        numbers |= {
            "curves of a run": statistics.median(
                seconds_of(lambda name=name: read_scalars(address, name, tags))  # type: ignore[misc]
                for name in names[:: len(names) // CHOSEN]
            )
        }
        time.sleep(IDLE_SECONDS)
        return numbers | idle_share(server) | {"memory": server.megabytes()}
    finally:
        server.stop()


def is_loaded(address: str, count: int, tags: list[str]) -> bool:
    """Return whether TensorBoard lists all runs with all their tags."""
    runs = json.loads(get(address, "/data/plugin/scalars/tags"))
    return len(runs) == count and all(len(each) == len(tags) for each in runs.values())


def read_scalars(address: str, run: str, tags: list[str]) -> None:
    """Request every curve of a run, as TensorBoard's page does: one request for each tag."""
    for tag in tags:
        points = json.loads(get(address, "/data/plugin/scalars/scalars", run=run, tag=tag))
        assert points


def wait_until(is_done: Any) -> None:
    """Call a function until it returns something true. Refused connections count as false."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if is_done():
                return
        time.sleep(0.05)
    raise RuntimeError("the server was not ready in ten minutes")


def seconds_of(call: Any) -> float:
    """Return how long a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def idle_share(server: Server) -> dict[str, float]:
    """Return the share of a core that an idle server takes."""
    before, began = server.cpu_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return {"idle, of a core": (server.cpu_seconds() - before) / (time.monotonic() - began)}


def scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line of a log, as TensorBoard names them."""
    for name, value in record.items():
        if name == "kl_per_latent":
            yield from ((f"{name}/{latent}", kl) for latent, kl in enumerate(value))
        elif name != "step" and value is not None:
            yield name, value


def write_event_files(runs: list[Path], root: Path, out: Path) -> list[str]:
    """Write the logs of runs as event files, and return the tags."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    tags: list[str] = []
    for run in runs:
        folder = out / run.relative_to(root)
        folder.mkdir(parents=True)
        with (folder / "events.out.tfevents.1.runs").open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
            for line in (run / "log.jsonl").read_text().splitlines():
                record = json.loads(line)
                numbers = dict(scalars(record))
                values = [Summary.Value(tag=t, simple_value=v) for t, v in numbers.items()]
                event = Event(
                    wall_time=1.0 + record["step"],
                    step=record["step"],
                    summary=Summary(value=values),
                )
                writer.write(event.SerializeToString())
                tags = list(numbers)
            writer.flush()
    return tags


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--lines", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        template, root, board = (Path(folder) / name for name in ("one", "runs", "board"))
        train = ["train", "shapes2d-quick", *TEMPLATE, "--device", "cpu", "--run", str(template)]
        subprocess.run(
            [sys.executable, "-m", "controlvae", *train], check=True, capture_output=True
        )
        runs = make_runs(template, root, options.count, options.lines)
        tags = write_event_files(runs, root, board)
        names = [run.relative_to(root).as_posix() for run in runs]
        results: dict[str, list[dict[str, float]]] = {"dashboard": [], "TensorBoard": []}
        for _ in range(options.rounds):
            results["dashboard"].append(measure_dashboard(root, names))
            results["TensorBoard"].append(measure_tensorboard(board, names, tags))
    version = subprocess.run(
        [sys.executable, "-m", "tensorboard.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(
        f"# {options.count} runs, {options.lines} lines each, {len(tags)} curves; medians (ranges) of"
    )
    print(f"# {options.rounds} rounds; Python {platform.python_version()}, TensorBoard {version};")
    print(f"# load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':24}{'dashboard':>26}{'TensorBoard':>26}")
    units = {"memory": "MB", "idle, of a core": ""}
    for name in results["dashboard"][0]:
        cells = []
        for rounds in results.values():
            values = [each[name] for each in rounds]
            text = f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"
            cells.append(f"{text} {units.get(name, 's')}".strip())
        print(f"{name:24}{cells[0]:>26}{cells[1]:>26}")


if __name__ == "__main__":
    main()
