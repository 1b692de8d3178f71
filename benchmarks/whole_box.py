"""Measure everything on the GPUs of one host, in one go: each benchmark with a limit of time.

    python benchmarks/whole_box.py --gpus 4 --out DIR [--goals] [--only airflow halo ...] [--limit 300]
        [--seconds N] [--list] [--jax PYTHON] [--nccl-tests DIR --libnccl DIR] [--nvbandwidth FILE] [--quick]

Each part is a command of its own, printed before it runs; what it prints goes to DIR/PART.txt and its figures
to DIR/PART.json. A part that fails or takes longer than its limit is reported, and the others go on. Parts
that use a few GPUs run at the same time. In the end the parts' own tables are printed once more, the
programs of meshrun and of JAX by number of GPUs, and a table of the parts with their figures and goals.

The same command again goes on after the parts that were run (DIR/PART.done), where `--seconds` or the end of
a lease stopped it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import end_group

HERE = Path(__file__).parent
LAST = 24  # lines of a part that are printed again
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# More ranks than cores, of Open MPI 4 and 5
OVERSUBSCRIBED = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Part:
    """One command.

    json: option that names the file for its figures; "": it writes none. limit: seconds; None: as --limit
    says. gpus: numbers of those that it uses, beside which other parts may run; (): it has all GPUs to
    itself. goal: what its figures are compared with.
    """

    name: str
    words: Sequence[str]
    json: str = "--json"
    limit: float | None = None
    gpus: tuple[int, ...] = ()
    goal: str = ""

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


@dataclass(frozen=True)
class Sizes:
    """What the parts with goals compute. programs: NAME:SIZE, as programs.py takes them."""

    side: int
    cube: int
    steps: int
    strong: int
    strong_cube: int
    strong_steps: int
    transforms: tuple[int, ...]
    programs: tuple[str, ...]
    seconds: float  # of a round of programs
    calls: int  # of small collectives
    runs: tuple[int, int]  # of validations that take 10 s, and of those with a busy GPU
    device: str


FULL = Sizes(
    side=16384, cube=512, steps=1000, strong=4096, strong_cube=256, strong_steps=20000,
    transforms=(1024, 2048),
    programs=("cavity:16384", "conjugate_step:32768", "conjugate_cube:1024", "v_cycle:32768",
              "turbulence:16384", "shallow_water:16384"),
    seconds=0.2, calls=200, runs=(10, 5), device="cuda",
)  # fmt: skip
QUICK = Sizes(
    side=64, cube=40, steps=20, strong=64, strong_cube=16, strong_steps=20, transforms=(16,),
    programs=("cavity:64", "conjugate_step:64", "conjugate_cube:16", "v_cycle:64", "turbulence:64",
              "shallow_water:64"),
    seconds=0.01, calls=5, runs=(1, 0), device="cpu",
)  # fmt: skip
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
    if gpus == 1:
        found = parts_of_one()
    else:
        found = parts_with_goals(options, QUICK if options.quick else FULL)
        found += [] if options.goals or options.quick else parts_of_several(gpus, ranks)
    if options.nccl_tests:
        theirs = ["--nccl-tests", options.nccl_tests, "--libnccl", options.libnccl, "--ranks", str(gpus)]
        found.append(Part("bench", script("nccl_tests", *theirs)))
    if options.nvbandwidth:
        found.append(
            Part("copy", script("nvbandwidth", "--nvbandwidth", options.nvbandwidth, "--ranks", str(gpus)))
        )
    return found


def parts_with_goals(options: argparse.Namespace, sizes: Sizes) -> list[Part]:
    """Return the parts whose figures have goals on four GPUs."""
    gpus, device = options.gpus, ["--device", sizes.device]
    fields = ["--side", str(sizes.side), "--cube", str(sizes.cube), "--steps", str(sizes.steps)]
    scaling = ["step_scaling", *device, "--rounds", "1", "--ranks"]
    airflow = [*scaling, "1", str(gpus), *fields, "--cases"]
    stronger = ["--strong", str(sizes.strong), "--strong-cube", str(sizes.strong_cube)]
    stronger += ["--steps", str(sizes.strong_steps), "--cases", "heat-strong", "diffusion3d-strong"]
    nccl = [*device, "-b", "8", "-e", "64K", "-f", "2", *(["-G", "20"] if sizes.device == "cuda" else [])]
    validate = ["validate_real", *device, "--ranks", str(gpus), "--runs"]
    healthy, busy = map(str, sizes.runs)

    def programs(ranks: int, *members: int) -> Part:
        rounds = ["--rounds", "3", "--seconds", str(sizes.seconds), *device, "--only", *sizes.programs]
        goal = "cavity and conjugate gradients 3.7 times one GPU, others 3" if ranks == gpus else ""
        words = on_ranks(ranks, script("programs", *rounds))
        return Part(f"programs on {ranks}", words, limit=120, gpus=members, goal=goal)

    def jax(devices: int, *members: int) -> Part:
        rounds = ["--rounds", "3", "--seconds", str(sizes.seconds), "--only", *sizes.programs]
        words = [options.jax, str(HERE / "programs_jax.py"), "--devices", str(devices), *rounds]
        return Part(f"JAX on {devices}", words, limit=120, gpus=members)

    # With four GPUs, programs of one and of two run at the same time.
    fewer = [programs(1, 0), jax(1, 1), programs(2, 2, 3)] if gpus >= 4 else [programs(1, 0), jax(1, 1)]
    transforms = [
        Part(
            f"fft {cells}",
            script(
                "transforms_device", "--only", "fft", "--gpus", str(gpus), "--rounds", "1", "--cells",
                str(cells), *device,
            ),
            limit=90,
            goal={1024: "5.2 ms", 2048: "43 ms"}.get(cells, ""),
        )
        for cells in sizes.transforms
    ]  # fmt: skip
    return [
        Part("lattice 3d", script(*airflow, "airflow3d-float16", "airflow3d"), limit=90,
             goal="float16 180 Gcell/s, float32 96, efficiency 0.97"),
        Part("lattice 2d", script(*airflow, "airflow2d-float16", "airflow2d"), limit=90,
             goal="efficiency 0.97"),
        programs(gpus),
        *fewer,
        Part("strong scaling", script(*scaling, *counts(gpus), *stronger), limit=90,
             goal="heat 3 times one GPU, three axes 2.8"),
        Part("small", on_ranks(gpus, script("small_collectives", *device, "--calls", str(sizes.calls))),
             limit=45, goal="all_reduce to 64 KiB 5.5 us, all_to_all of 16 B 5 us"),
        *transforms,
        jax(gpus),
        Part("NCCL all_reduce", meshrun("-n", str(gpus), "bench", "all_reduce", *nccl), limit=45, json="-J"),
        Part("NCCL alltoall", meshrun("-n", str(gpus), "bench", "alltoall", *nccl), limit=45, json="-J"),
        Part("validate healthy", script(*validate, healthy, "--faults", "healthy"), limit=200,
             goal="all right"),
        *([Part("validate busy", script(*validate, busy, "--faults", "busy"), limit=120, goal="all right"),
           Part("validate host", script(*validate, healthy, "--faults", "off-nvlink"), limit=200,
                goal="all right")] if sizes.device == "cuda" else []),
        Part("lattice strong", script(*airflow, "airflow3d-float16-strong", "airflow3d-strong",
             "airflow2d-float16-strong", "airflow2d-strong"), limit=120),
    ]  # fmt: skip


def parts_of_one() -> list[Part]:
    """Return the parts for one GPU: its tests, kernels and files."""
    return [
        Part("tests", pytest("tests/gpu"), json=""),
        Part("airflow", script("airflow_device")),
        Part("airflow peers", script("airflow_peers")),
        Part("fused steps", script("fuse_steps_device", "--quick")),
        Part("fused pass", script("fuse_device", "--seconds", "60")),
        Part("transforms", script("transforms_device", "--gpus", "1")),
        Part("steps", script("steps_device")),
        Part("laplacian", script("device_laplacian")),
        Part("filters", script("filters_device")),
        Part("stream", on_ranks(1, script("stream_device"))),
        Part("memcheck", sanitizer("memcheck", "tests/gpu/test_fuse_gpu.py"), json=""),
        Part("racecheck", sanitizer("racecheck", "tests/gpu/test_fuse_gpu.py"), json=""),
    ]


def parts_of_several(gpus: int, ranks: list[str]) -> list[Part]:
    """Return the parts that need more than one GPU. ranks: numbers of ranks, as text."""
    scaling = ["step_scaling", "--ranks", *ranks, "--rounds", "1", "--cases"]
    large = ["--side", "65536", "--cells", "2048", "--factors", "65536", "--precisions", "bfloat16"]
    transforms = ["--gpus", str(gpus), "--rounds", "1", *large] if gpus > 2 else ["--gpus", "1,2"]
    cube = ["2048" if gpus > 2 else "1024"] * 3
    return [
        Part("transforms", script("transforms_device", *transforms)),
        Part("steps", script(*scaling, "heat", "wave", "heat-strong", "--steps", "4000")),
        Part("steps 3d", script(*scaling, "diffusion3d")),
        Part("fft stages", on_ranks(gpus, script("fourier_stages", "--shape", *cube))),
        Part("halo", on_ranks(gpus, script("halo_device"))),
        Part("faults", script("faults_device", "--ranks", str(gpus))),
        Part("restart", script("restart", "--device", "cuda", "--ranks", str(gpus), "--runs", "5")),
        Part("local", meshrun("launch", "local", "-j", str(gpus), "--", "selftest"), json=""),
        Part("doctor", meshrun("-n", str(gpus), "doctor")),
        Part("preflight", script("preflight", "--ranks", str(gpus), "--device", "cuda")),
        Part("weak", on_ranks(gpus, script("weak_scaling"))),
        Part("stream", on_ranks(gpus, script("stream_device"))),
        Part("tests on ranks", on_ranks(2, pytest("--with-mpi", *ON_RANKS)), json=""),
        Part("memcheck of halos", on_ranks(2, sanitizer("memcheck", "--with-mpi", ON_RANKS[0], "-k", FEW)),
             json=""),
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
    done = []
    for group in at_once(chosen):
        with ThreadPoolExecutor(len(group)) as pool:
            done += pool.map(lambda part: earlier(part, options) or run(part, options, end), group)
    for one in done:
        print(f"\n=== {one.part.name}", *one.lines, sep="\n")
    show_programs(options.out)
    print("\npart               seconds  result")
    for one in done:
        figures = "" if one.why else figures_of(options.out / f"{one.part.file}.json")
        goal = f"  (goal: {one.part.goal})" if one.part.goal else ""
        print(f"{one.part.name:17} {one.seconds:8.1f}  {one.why or figures or 'measured'}{goal}")
    return int(any(one.why for one in done))


def at_once(chosen: list[Part]) -> list[list[Part]]:
    """Return groups of parts that run at the same time: neighbours in the list that share no GPU."""
    groups: list[list[Part]] = []
    for part in chosen:
        busy = {gpu for other in groups[-1] for gpu in other.gpus} if groups else set()
        if part.gpus and busy and not busy & set(part.gpus):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def figures_of(file: Path) -> str:
    """Return what a part's JSON says, in a line; "" if it has none, or of another kind."""
    if not file.exists():
        return ""
    record = json.loads(file.read_text())
    rows = record.get("rows", [])
    if "average_bus_bandwidth" in record:  # in nccl-tests' layout
        return ", ".join(f"{row['size']} B {row['out_of_place']['time']:.3g} us" for row in record["results"])
    match record.get("benchmark", record.get("kind")):
        case "step_scaling":
            most = max((row["ranks"] for row in rows), default=0)
            texts = [
                f"{row['case']} {row['cells_per_second'] / 1e9:.4g} Gcell/s ({row['scaling']:.3f})"
                for row in rows
                if row["ranks"] == most
            ]
        case "programs":
            texts = [f"{row['program']} {row['microseconds']:.4g} us" for row in rows]
        case "small_collectives":
            times = [row["graph_microseconds"] or row["microseconds"] for row in rows]
            texts = [
                f"{row['operation']} {row['bytes']} B {time:.3g} us"
                for row, time in zip(rows, times, strict=True)
            ]
        case "transforms_device":
            texts = []
            for count in record["counts"].values():
                medians = count["medians"]
                times = medians["ranks"] | {f"JAX {name}": time for name, time in medians["jax"].items()}
                texts += [f"{name} {1e3 * time:.4g} ms" for name, time in times.items()]
        case "validate_real":
            right = [one["right"] and not one["also"] for one in record["runs"]]
            texts = [f"{sum(right)} of {len(right)} right"]
        case _:
            return ""
    return ", ".join(texts)


def show_programs(out: Path) -> None:
    """Print each program's microseconds per step by number of GPUs, meshrun's and JAX's."""
    times: dict[tuple[str, str], dict[int, float]] = {}
    for method, file in itertools.product(("programs", "JAX"), sorted(out.glob("*_on_*.json"))):
        if file.name.startswith(f"{method}_on_"):
            record: dict[str, Any] = json.loads(file.read_text())
            for row in record["rows"]:
                key = row["program"], "JAX" if method == "JAX" else "meshrun"
                times.setdefault(key, {})[record["ranks"]] = row["microseconds"]
    ranks = sorted({count for of_counts in times.values() for count in of_counts})
    if not ranks:
        return
    heads = "".join(f"{f'us on {count}':>13}" for count in ranks)
    print(f"\n{'program':16} {'by':8}{heads}  times as fast as one")
    for (program, method), of_counts in sorted(times.items()):
        cells = "".join(f"{of_counts[n]:13.1f}" if n in of_counts else f"{'-':>13}" for n in ranks)
        most = max(of_counts)
        faster = f"{of_counts[1] / of_counts[most]:.2f}" if 1 in of_counts and most > 1 else "-"
        print(f"{program:16} {method:8}{cells}  {faster}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="PART")
    parser.add_argument("--goals", action="store_true", help="only the parts that have goals on four GPUs")
    parser.add_argument(
        "--quick", action="store_true", help="the same, tiny and on CPU ranks: whether they start"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a part")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all parts; the next call goes on")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--jax", default=sys.executable, help="interpreter that has JAX")
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
    words = [*part.words, *([part.json, str(options.out / f"{part.file}.json")] if part.json else [])]
    begin = time.monotonic()
    most = options.limit if part.limit is None else part.limit
    limit = min(most, end - begin)
    if limit <= 0:
        return Done(part, 0.0, LATER, [])
    print("$", *words, flush=True)
    if not shutil.which(words[0]):
        return Done(part, 0.0, f"no program {words[0]}", [])
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, part.gpus))} if part.gpus else {}
    why = ""
    with (options.out / f"{part.file}.txt").open("w") as file:
        process = subprocess.Popen(
            words,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**OPEN_MPI, **(OVERSUBSCRIBED if options.quick else {}), **os.environ, **visible},
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
            why = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            why = f"longer than {limit:g} s" if limit == most else LATER
            end_group(process)
    seconds = time.monotonic() - begin
    if why != LATER:
        (options.out / f"{part.file}.done").write_text(json.dumps([seconds, why]))
    return Done(part, seconds, why, last_lines(part, options))


if __name__ == "__main__":
    sys.exit(main())
