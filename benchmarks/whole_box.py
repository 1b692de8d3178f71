"""Every figure of the GPUs of one host, in one go: each benchmark with a limit of time.

    python benchmarks/whole_box.py --gpus 4 --out DIR [--only airflow halo ...] [--limit 300] [--seconds N]
        [--list] [--nccl-tests DIR --libnccl DIR] [--nvbandwidth FILE]

Each part is a command of its own, printed before it runs; what it prints goes to DIR/PART.txt and its figures
to DIR/PART.json. A part that fails or takes longer than the limit is reported, and the others go on. In the
end the parts' own tables are printed once more, and a table of the parts.

The same command again goes on after the parts that were run (DIR/PART.done), where `--seconds` or the end of
a lease stopped it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from side_by_side import end_group

HERE = Path(__file__).parent
LAST = 24  # lines of a part that are printed again
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Part:
    """One command. json: whether it writes its figures with --json."""

    name: str
    words: Sequence[str]
    json: bool = True

    @property
    def file(self) -> str:
        return self.name.replace(" ", "_")


@dataclass(frozen=True)
class Done:
    """A part that was run. why: it gave no figures, or ""."""

    part: Part
    seconds: float
    why: str
    lines: Sequence[str]


ON_RANKS = [
    f"tests/gpu/test_{name}_gpu.py" for name in ("direct_halo", "ranks", "direct_transpose", "transforms")
]
FEW = "direct and (rows or grid or line or axes) and not 2 and not 3"  # of the tests of direct halos
LATER = "no time was left"


def script(name: str, *words: str) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py"), *words]


def on_ranks(ranks: int, words: Sequence[str]) -> list[str]:
    return ["mpirun", "--bind-to", "none", "-n", str(ranks), *words]


def meshrun(*words: str) -> list[str]:
    return [sys.executable, "-m", "meshrun", *words]


def pytest(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", *words]


def sanitizer(tool: str, *words: str) -> list[str]:
    """Return CUDA's compute-sanitizer over tests, which fail with its status if it finds an error.

    NCCL is left out: it asks for kernels that there are not, and its kernels race by intention.
    """
    options = (
        ["--report-api-errors", "no"]
        if tool == "memcheck"
        else ["--kernel-name-exclude", "kernel_substring=nccl"]
    )
    return ["compute-sanitizer", "--tool", tool, *options, "--error-exitcode", "9", *pytest(*words)]


def counts(gpus: int) -> list[str]:
    """Return 1, 2, 4, ... up to the number of GPUs."""
    return [str(1 << power) for power in range(gpus.bit_length()) if 1 << power <= gpus]


def parts(options: argparse.Namespace) -> list[Part]:
    """Return all parts, in the order of their worth: a lease may end early."""
    gpus, ranks = options.gpus, counts(options.gpus)
    found = parts_of_one() if gpus == 1 else parts_of_several(gpus, ranks)
    if options.nccl_tests:
        theirs = ["--nccl-tests", options.nccl_tests, "--libnccl", options.libnccl, "--ranks", str(gpus)]
        found.append(Part("bench", script("nccl_tests", *theirs)))
    if options.nvbandwidth:
        found.append(
            Part("copy", script("nvbandwidth", "--nvbandwidth", options.nvbandwidth, "--ranks", str(gpus)))
        )
    return found


def parts_of_one() -> list[Part]:
    """Return the parts for one GPU: its tests, kernels and files."""
    return [
        Part("tests", pytest("tests/gpu"), json=False),
        Part("airflow", script("airflow_device")),
        Part("airflow peers", script("airflow_peers")),
        Part("fused steps", script("fuse_steps_device", "--quick")),
        Part("fused pass", script("fuse_device", "--seconds", "60")),
        Part("transforms", script("transforms_device", "--gpus", "1")),
        Part("steps", script("steps_device")),
        Part("laplacian", script("device_laplacian")),
        Part("filters", script("filters_device")),
        Part("stream", on_ranks(1, script("stream_device"))),
        Part("memcheck", sanitizer("memcheck", "tests/gpu/test_fuse_gpu.py"), json=False),
        Part("racecheck", sanitizer("racecheck", "tests/gpu/test_fuse_gpu.py"), json=False),
    ]


def parts_of_several(gpus: int, ranks: list[str]) -> list[Part]:
    """Return the parts that need more than one GPU. ranks: numbers of ranks, as text."""
    scaling = ["step_scaling", "--ranks", *ranks, "--rounds", "1", "--cases"]
    validate = ["validate_real", "--device", "cuda", "--ranks", str(gpus), "--faults"]
    large = ["--side", "65536", "--cells", "2048", "--factors", "65536", "--precisions", "bfloat16"]
    transforms = ["--gpus", str(gpus), "--rounds", "1", *large] if gpus > 2 else ["--gpus", "1,2"]
    cube = ["2048" if gpus > 2 else "1024"] * 3
    return [
        Part("transforms", script("transforms_device", *transforms)),
        Part("airflow", script(*scaling, "airflow3d", "airflow2d", "--cube", "512", "--steps", "1000")),
        Part("steps", script(*scaling, "heat", "wave", "heat-strong", "--steps", "4000")),
        Part("steps 3d", script(*scaling, "diffusion3d")),
        Part("fft stages", on_ranks(gpus, script("fourier_stages", "--shape", *cube))),
        Part("halo", on_ranks(gpus, script("halo_device"))),
        Part("validate", script(*validate, "healthy", "off-nvlink", "--runs", "10")),
        Part("faults", script("faults_device", "--ranks", str(gpus))),
        Part("restart", script("restart", "--device", "cuda", "--ranks", str(gpus), "--runs", "5")),
        Part("local", meshrun("launch", "local", "-j", str(gpus), "--", "selftest"), json=False),
        Part("doctor", meshrun("-n", str(gpus), "doctor")),
        Part("preflight", script("preflight", "--ranks", str(gpus), "--device", "cuda")),
        Part("validate busy", script(*validate, "busy", "--runs", "2")),
        Part("strong", script(*scaling, "heat-strong", "--strong", "4096", "--steps", "20000")),
        Part("weak", on_ranks(gpus, script("weak_scaling"))),
        Part("stream", on_ranks(gpus, script("stream_device"))),
        Part("tests on ranks", on_ranks(2, pytest("--with-mpi", *ON_RANKS)), json=False),
        Part("memcheck of halos", on_ranks(2, sanitizer("memcheck", "--with-mpi", ON_RANKS[0], "-k", FEW)),
             json=False),
    ]  # fmt: skip


def main() -> int:
    options = arguments()
    chosen = [part for part in parts(options) if not options.only or part.name in options.only]
    if options.list:
        for part in chosen:
            print(part.name, *part.words)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    done = [earlier(part, options) or run(part, options, end) for part in chosen]
    for one in done:
        print(f"\n=== {one.part.name}", *one.lines, sep="\n")
    print("\npart               seconds  result")
    for one in done:
        print(f"{one.part.name:17} {one.seconds:8.1f}  {one.why or 'measured'}")
    return int(any(one.why for one in done))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="PART")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a part")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all parts; the next call goes on")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--nccl-tests", help="folder of nccl-tests' programs")
    parser.add_argument("--libnccl", default="", help="folder of the libnccl that both sides use")
    parser.add_argument("--nvbandwidth", help="nvbandwidth's program")
    return parser.parse_args()


def earlier(part: Part, options: argparse.Namespace) -> Done | None:
    """Return a part that an earlier call has run; None: none has."""
    file = options.out / f"{part.file}.done"
    if not file.exists():
        return None
    seconds, why = json.loads(file.read_text())
    return Done(part, seconds, why, last_lines(part, options))


def last_lines(part: Part, options: argparse.Namespace) -> list[str]:
    return (options.out / f"{part.file}.txt").read_text(errors="replace").splitlines()[-LAST:]


def run(part: Part, options: argparse.Namespace, end: float) -> Done:
    """Run a part; all its processes end with it. At `end` it is stopped, for another call to run it."""
    words = [*part.words, *(["--json", str(options.out / f"{part.file}.json")] if part.json else [])]
    begin = time.monotonic()
    limit = min(options.limit, end - begin)
    if limit <= 0:
        return Done(part, 0.0, LATER, [])
    print("$", *words, flush=True)
    if not shutil.which(words[0]):
        return Done(part, 0.0, f"no program {words[0]}", [])
    why = ""
    with (options.out / f"{part.file}.txt").open("w") as file:
        process = subprocess.Popen(
            words,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**OPEN_MPI, **os.environ},
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
            why = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            why = f"longer than {limit:g} s" if limit == options.limit else LATER
            end_group(process)
    seconds = time.monotonic() - begin
    if why != LATER:
        (options.out / f"{part.file}.done").write_text(json.dumps([seconds, why]))
    return Done(part, seconds, why, last_lines(part, options))


if __name__ == "__main__":
    sys.exit(main())
