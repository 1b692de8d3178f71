"""What becomes of a run of several ranks when one of them fails: is it ended, is the rank named, how soon.

    python benchmarks/faults_device.py [--ranks 4] [--device cuda] [--faults kill stop ...] [--json FILE]

Each run takes time steps of a small field. At a step in its middle, one rank

kill        is killed by SIGKILL
stop        is stopped by SIGSTOP; the run has --stall-timeout 8
exception   raises a ValueError in the user's function
illegal     starts a kernel that writes to an illegal address (--device cuda)
resume      is killed by SIGKILL in a run with --on-failure resume, which continues with the others

right: the run ended with a status other than 0 and its messages name the rank; with "resume", it ended with
status 0 and the bytes of an undisturbed run. seconds: from the fault to the end of the command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import marching

from meshrun.runner.report.record import write_json

AT_STEP = """
def at_step(done):
    notes = os.environ["NOTES"]
    if rank == os.environ["VICTIM"] and done == 60 and not os.path.exists(notes):
        with open(notes, "x") as file:  # once: the ranks of a second start take the same steps
            file.write(str(time.monotonic()))
        fail(os.environ["FAULT"])


def fail(fault):
    if fault in ("kill", "resume"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "exception":
        raise ValueError("as planned")
    if fault == "illegal":
        import cupy

        write = cupy.RawKernel('extern "C" __global__ void write(int* to) { *to = 1; }', "write")
        write((1,), (1,), (cupy.uint64(16),))
"""
STEPS = 160
FAULTS = ("kill", "stop", "exception", "illegal", "resume")
LONGEST = 120.0  # seconds of a run


def main() -> None:
    options = arguments()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        marching.prepare(work, AT_STEP)
        undisturbed, expected, said = one_run(work, options, "none", 0)
        if undisturbed["status"]:
            sys.exit(f"an undisturbed run ended with status {undisturbed['status']}\n{said}")
        for number, fault in enumerate(options.faults):
            victim = (number + 1) % options.ranks
            row, found, said = one_run(work, options, fault, victim)
            if fault == "resume":
                row["right"] = row["status"] == 0 and found == expected
            else:
                row["right"] = row["status"] not in (0, None) and f"rank {victim}" in said
            rows.append(row)
            seconds = "-" if row["seconds"] is None else f"{row['seconds']:.2f} s"
            told = next((line for line in said.splitlines() if f"rank {victim}" in line), "")
            verdict = "right" if row["right"] else "WRONG"
            print(
                f"{fault:10} rank {victim}  {verdict}  status {row['status']}  {seconds:>8}  {told[:150]}",
                flush=True,
            )
            if not row["right"]:
                print(*said.splitlines()[-9:], sep="\n  ")
    if options.json:
        about = {"ranks": options.ranks, "device": options.device, "steps": STEPS}
        write_json(options.json, "benchmark", 1, {"benchmark": "faults_device", **about, "rows": rows})
    sys.exit(int(not all(row["right"] for row in rows)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--faults", nargs="+", choices=FAULTS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.faults = options.faults or [one for one in FAULTS if options.device == "cuda" or one != "illegal"]
    return options


def one_run(
    work: Path, options: argparse.Namespace, fault: str, victim: int
) -> tuple[dict[str, Any], bytes, str]:
    """Run once; return the figures, the output's bytes, and what the run printed to standard error."""
    notes = work / f"{fault}.note"
    start = ["--stall-timeout", "8", *(["--on-failure", "resume"] if fault == "resume" else [])]
    more = ["--steps", str(STEPS), "--device", options.device]
    more += ["--checkpoint", "20"] if fault == "resume" else []
    variables = {"FAULT": fault, "VICTIM": "none" if fault == "none" else str(victim), "NOTES": str(notes)}
    try:
        done = subprocess.run(
            marching.command(work, options.ranks, start, more), cwd=work, capture_output=True, text=True,
            timeout=LONGEST, check=False, env={**os.environ, **variables},
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else late.stderr or ""
        return {"fault": fault, "victim": victim, "status": None, "seconds": None}, b"", said
    end = time.monotonic()
    seconds = end - float(notes.read_text()) if notes.exists() else None
    row = {"fault": fault, "victim": victim, "status": done.returncode, "seconds": seconds}
    return row, marching.result(work, done.returncode), done.stderr


if __name__ == "__main__":
    main()
