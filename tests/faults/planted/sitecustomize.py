"""What random_faults.py plants in one rank; Python loads it by its name from PYTHONPATH, in every process.

The variable FAULT is "ACTION,RANK,EVENT,NTH,RANKS". Events are seen by an audit hook, which needs nothing of
meshrun: `start` (mpi4py is imported: before MPI_Init), `input` and `output` (a file is opened), `block` (the
job's function is called), `commit` (the output gets its name).
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
WAIT = 5.0  # seconds for the harness to come and do something


def _act(action: str, notes: Path) -> None:
    (notes / "event").touch()
    if action == "wait":  # the harness does it
        until = time.monotonic() + WAIT
        while not (notes / "go").exists() and time.monotonic() < until:
            time.sleep(0.005)
    elif action == "exit 0":
        os._exit(0)
    elif action == "abort":
        os.abort()
    elif action == "segmentation fault":
        ctypes.string_at(0)
    elif action == "exception":
        raise ValueError("planted")
    elif action == "clock jump":
        real = time.time
        time.time = lambda: real() + 86_400
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "loop":
        while True:
            pass


def _event(name: str, arguments: tuple) -> str:  # type: ignore[type-arg]
    if name == "faults.block":
        return "block"
    if name == "import":
        return "start" if arguments[0] == "mpi4py.MPI" else ""
    if name == "os.rename":
        return "commit" if Path(os.fsdecode(arguments[1])).name == "out.npy" else ""
    if name == "open" and isinstance(arguments[0], str):
        path = Path(arguments[0])
        if path.name == "in.npy":
            return "input"
        return "output" if path.name.startswith(".out.npy") else ""
    return ""


def _plant() -> None:
    action, rank, wanted, nth, ranks = os.environ["FAULT"].split(",")
    ours = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), None)
    if (ours or "0") != rank or (ours is None and ranks != "1"):
        return
    notes, seen = Path(os.environ["FAULT_NOTES"]), 0

    def watch(name: str, arguments: tuple) -> None:  # type: ignore[type-arg]
        nonlocal seen
        if _event(name, arguments) == wanted:
            seen += 1
            if seen == int(nth):
                _act(action, notes)

    sys.addaudithook(watch)


if "FAULT" in os.environ:
    _plant()
