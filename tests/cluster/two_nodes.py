"""`torchrun --nnodes 2` across two network namespaces, one of which is killed and restarted.

Needs Linux, root and `ip` (Debian: iproute2). Run it by hand:

    python tests/cluster/two_nodes.py

It makes two namespaces that are joined by a virtual cable, trains one model on a process in each,
kills every process of the second one, starts it again, and compares the log with that of a single
process. The namespaces are removed whatever happens.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NODES = {"cv-a": "10.77.0.1", "cv-b": "10.77.0.2"}
CABLE = {"cv-a": "cv0", "cv-b": "cv1"}
NAMES = Path("/etc/netns")  # files that a namespace sees in /etc
PORT, STEPS, TOLERANCE = 29_477, 2_000, 1e-9
MODEL = f"""
import torch
from torch import nn
import controlvae as cv
from controlvae import lab

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(),
                                  nn.Linear(64, 8))
        self.up = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.1), nn.Tanh(), nn.Linear(64, 64))
        self.double()

    def encode(self, x):
        return self.down(x).chunk(2, dim=1)

    def decode(self, z):
        return self.up(z)

torch.manual_seed(0)
rows = (torch.rand(1_000, 64) < torch.rand(10, 64).repeat(100, 1)).double()
experiment = lab.define(VAE, rows, law=cv.Auto(3.0), steps={STEPS}, batch=33, log_every=20)
"""


def main() -> int:
    """Run the comparison. Returns the exit status."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: network namespaces need Linux, root and ip (Debian: iproute2)")
        return 0
    with tempfile.TemporaryDirectory() as name, two_namespaces():
        folder = Path(name)
        (folder / "my_vae.py").write_text(MODEL)
        alone = [sys.executable, "-m", "controlvae", "train", "my_vae.py", "--run", "alone"]
        subprocess.run([*alone, "--device", "cpu"], cwd=folder, env=environment(), check=True)
        train_on_two_nodes(folder)
        return compare(folder)


def train_on_two_nodes(folder: Path) -> None:
    """Train in both namespaces, and kill and restart the second one on the way."""
    first, second = start_node("cv-a", folder), start_node("cv-b", folder)
    try:
        wait_until(lambda: saved_step(folder / "both") >= STEPS // 10, first)
        kill_node("cv-b")
        second.wait()
        print(f"killed node cv-b at step {last_step(folder / 'both'):,}")
        time.sleep(3)
        second = start_node("cv-b", folder)
        print("started node cv-b again")
        for process in (first, second):
            status = process.wait(timeout=300)
            print(f"torchrun ended with status {status}")
            if status:
                sys.exit("a node failed")
    finally:
        for name in NODES:
            kill_node(name)


def compare(folder: Path) -> int:
    """Print the largest difference of KL and β between the logs. Returns the exit status."""
    logs = [
        [json.loads(line) for line in (folder / run / "log.jsonl").open()]
        for run in ("alone", "both")
    ]
    if [one["step"] for one in logs[0]] != [one["step"] for one in logs[1]]:
        print("the logs have other steps")
        return 1
    pairs = list(zip(*logs, strict=True))
    worst = {name: max(abs(a[name] - b[name]) for a, b in pairs) for name in ("kl", "beta")}
    for event in map(json.loads, (folder / "both/events.jsonl").open()):
        print({name: event[name] for name in ("event", "step", "ranks") if name in event})
    print(f"{len(pairs)} log lines; largest differences: {worst}")
    return 0 if max(worst.values()) < TOLERANCE else 1


@contextmanager
def two_namespaces() -> Iterator[None]:
    """Make two network namespaces with a cable between them, and remove them afterwards."""
    remove_namespaces()
    try:
        for name in NODES:
            run_ip("netns", "add", name)
            run_ip("-n", name, "link", "set", "lo", "up")
        (first, second), (near, far) = NODES, CABLE.values()
        ends = ("type", "veth", "peer", "name", far, "netns", second)
        run_ip("link", "add", near, "netns", first, *ends)
        for name, address in NODES.items():
            run_ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE[name])
            run_ip("-n", name, "link", "set", CABLE[name], "up")
            write_names(name)
        yield
    finally:
        remove_namespaces()


def write_names(name: str) -> None:
    """Let a namespace know both machines by name, and ask no name server."""
    folder = NAMES / name
    folder.mkdir(parents=True, exist_ok=True)
    hosts = ["127.0.0.1 localhost", *(f"{address} {node}" for node, address in NODES.items())]
    (folder / "hosts").write_text("\n".join(hosts) + "\n")
    (folder / "resolv.conf").write_text("options timeout:1 attempts:1\n")


def remove_namespaces() -> None:
    """Kill the processes of both namespaces and delete them, if they are there."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for name in NODES:
        if name in listed.stdout.split():
            kill_node(name)
            run_ip("netns", "delete", name)
        shutil.rmtree(NAMES / name, ignore_errors=True)


def start_node(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start torchrun with one process in a namespace."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    launcher += ["--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", f"cv-a:{PORT}", "--rdzv-id", "two-nodes"]
    launcher += ["-m", "controlvae", "--"]
    train = ["train", "my_vae.py", "--run", "both", "--device", "cpu", "--checkpoint-every", "1s"]
    named = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
    command = ["ip", "netns", "exec", name, *named, *launcher, *train]
    return subprocess.Popen(command, cwd=folder, env=environment())


def kill_node(name: str) -> None:
    """Kill every process in a namespace, as a power failure does."""
    listed = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    )
    for pid in map(int, listed.stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition while a process runs."""
    for _ in range(1_200):
        if condition():
            return
        if process.poll() is not None:
            sys.exit("torchrun ended too early")
        time.sleep(0.1)
    sys.exit("nothing happened for two minutes")


def saved_step(run: Path) -> int:
    """Return the step of the newest checkpoint, or -1."""
    names = (path.name for path in run.glob("checkpoint/step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def last_step(run: Path) -> int:
    """Return the step of the last complete line of a log."""
    lines = (run / "log.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["step"] if lines else 0


def environment() -> dict[str, str]:
    """Return the environment of the training processes."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # Without it, an agent of torch 2.13 that joins later waits for an address that is never sent.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, **own_store, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run_ip(*arguments: str) -> None:
    """Run `ip` and raise if it fails."""
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
