"""Every kernel compiles without a warning, in instances for each type of elements; no GPU needed.

What the compiler reports of its registers, shared memory and stack is compared with golden figures, in
resources.json: a change in them is seen before a GPU is slower for it. They are those of one version of
NVRTC. With another version, only shared memory is compared, and that nothing spills.

One architecture gets these instances, the others one of each file; at night all get every instance that a
job can ask for. To renew the figures, after a look at what changed:

    PYTHONPATH=tests/facts python tests/unit/kernels/test_compile.py --write
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_kernels import INSTANCES
from nvrtc_log import done

import meshrun
import meshrun.jobs.kernels
from meshrun.jobs.filters import convolve
from meshrun.jobs.filters.dtypes import SUPPORTED
from meshrun.jobs.filters.dtypes import result as filtered_type
from meshrun.jobs.kernels import instance
from meshrun.jobs.measure.exact_reductions import RecipeKind

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and NVRTC")

FOLDER = Path(meshrun.jobs.kernels.__file__).parent
FILES = sorted(path.name for path in FOLDER.glob("*.cu"))
GOLDEN = Path(__file__).with_name("resources.json")
WHOLE, *OTHERS = ARCHITECTURES = ("90", "80", "100")
RESULTS = ("int16", "int32", "int64", "float32", "float64")
DTYPES = ("uint8", "int64", "float16", "float32", "float64")  # each itemsize, each kind of arithmetic
# By day: elements that get all results, the others those of their own type.
ALL_RESULTS = ("uint8", "int64", "float64")
# ptxas' report beside warnings.
REPORT = re.compile(r"ptxas info\s*:.*|ptxas\s+\. .*|\s*")


@dataclass(frozen=True)
class Resources:
    """Of one kernel. registers: of a thread. shared: static, bytes of a block. stack: bytes of a thread's
    local memory. stores, loads: bytes of registers spilled there."""

    registers: int
    shared: int
    stack: int
    stores: int
    loads: int

    @property
    def spills(self) -> bool:
        return bool(self.stores or self.loads)


@dataclass(frozen=True)
class Compiled:
    """What NVRTC made of a file. resources: by instance. warnings: what it said beside them."""

    resources: dict[str, Resources]
    warnings: str


def instances(file: str, *, every: bool) -> Iterator[str]:
    """All that a job can ask for, or some for each type of elements."""
    if file in INSTANCES:
        yield from INSTANCES[file]
        return
    if file == "bench_data.cu":
        for kernel, word, kind in product(("fill", "verify"), ("u1", "u2", "u4", "u8"), RecipeKind):
            yield instance(kernel, word, int(kind))
        return
    # int32, int64 and float64 sums
    weights = [convolve.read(kernel, False) for kernel in ("1", "1e5", "0.1")]
    for source in map(np.dtype, SUPPORTED):
        same, wanted = filtered_type(source, "same"), every or source.name in ALL_RESULTS
        results = [same, *(map(np.dtype, RESULTS) if wanted else ())]
        if file == "convolve.cu":
            for kernel, result in product(weights, results):
                yield convolve.instance(source, convolve.accumulator(source, result, kernel), result)
        else:
            yield instance(file.removesuffix(".cu"), source)


def golden_instances(file: str) -> Iterator[str]:
    """Those with figures: of kernels that jobs launch in dozens of instances, some; of measured ones, all."""
    if file in INSTANCES:
        yield from INSTANCES[file]
        return
    if file == "bench_data.cu":
        for word, kind in (
            ("u1", RecipeKind.COPIED),
            ("u2", RecipeKind.FLOAT_SUM),
            ("u4", RecipeKind.EXTREME),
            ("u8", RecipeKind.SUM),
        ):
            yield instance("fill", word, int(kind))
            yield instance("verify", word, int(kind))
        return
    weights = convolve.read("0.1", False)
    for dtype in map(np.dtype, DTYPES):
        if file == "convolve.cu":
            yield convolve.instance(dtype, convolve.accumulator(dtype, dtype, weights), dtype)
        else:
            yield instance(file.removesuffix(".cu"), dtype)


def compiled(file: str, names: Iterable[str], architecture: str, options: Sequence[str] = ()) -> Compiled:
    """As `meshrun.kernel` compiles it, for sm_`architecture`. Asserts that each instance is made."""
    program = done(nvrtc.nvrtcCreateProgram((FOLDER / file).read_bytes(), file.encode(), 0, [], []))
    names = sorted(set(names))
    for name in names:
        done(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    fused = file.removesuffix(".cu") in meshrun.jobs.kernels.FUSED
    flags = [f"-arch=sm_{architecture}", "-std=c++17", f"--fmad={str(fused).lower()}", *headers()]
    flags += ["--ptxas-options=-v", *options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    buffer = bytearray(done(nvrtc.nvrtcGetProgramLogSize(program)))
    done(nvrtc.nvrtcGetProgramLog(program, buffer))
    log = buffer.decode().strip("\0\n ")
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, log
    lowered = {name: done(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names}
    assert done(nvrtc.nvrtcGetCUBINSize(program)) > 0
    done(nvrtc.nvrtcDestroyProgram(program))
    found = read(log)
    said = [line for line in log.splitlines() if not REPORT.fullmatch(line)]
    return Compiled({name: found[symbol] for name, symbol in lowered.items()}, "\n".join(said))


def headers() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    found = [header for place in places for header in Path(place).glob("*/include/cuda_fp16.h")]
    assert found, "nvidia-cuda-runtime, which holds cuda_fp16.h, is not installed"
    return [f"-I{found[0].parent}", f"-I{FOLDER}"]


def read(log: str) -> dict[str, Resources]:
    """By symbol, from ptxas' report."""
    found = {}
    for symbol, report in re.findall(
        r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", log, re.S
    ):
        memory = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report
        )
        registers = re.search(r"Used (\d+) registers", report)
        assert memory, log
        assert registers, log
        shared = re.search(r"(\d+) bytes smem", report)
        found[symbol] = Resources(
            int(registers[1]), int(shared[1]) if shared else 0, *map(int, memory.groups())
        )
    return found


def version() -> str:
    """NVRTC's."""
    return metadata.version("nvidia-cuda-nvrtc")


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    read_back: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return read_back


def test_there_is_a_figure_for_every_kernel(golden: dict[str, Any]) -> None:
    kept = {file: set(by_instance) for file, by_instance in golden["kernels"].items()}
    assert kept == {file: set(golden_instances(file)) for file in FILES}


def cases() -> Iterator[Any]:
    """Some instances of each file on one architecture, one on the others; at night all on all."""
    for file in FILES:
        golden = [*golden_instances(file)]
        some = sorted({*instances(file, every=False), *golden})
        every = sorted({*instances(file, every=True), *golden})
        yield pytest.param(file, some, WHOLE, id=f"{file}-{WHOLE}")
        if len(every) > len(some):
            yield pytest.param(file, every, WHOLE, id=f"{file}-{WHOLE}-every", marks=pytest.mark.nightly)
        for architecture in OTHERS:
            yield pytest.param(file, golden[:1], architecture, id=f"{file}-{architecture}-one")
            yield pytest.param(
                file, every, architecture, id=f"{file}-{architecture}", marks=pytest.mark.nightly
            )


@pytest.mark.parametrize(("file", "names", "architecture"), [*cases()])
def test_kernel_compiles_without_a_warning_to_the_golden_resources(
    file: str, names: list[str], architecture: str, golden: dict[str, Any]
) -> None:
    made = compiled(file, names, architecture)
    assert made.warnings == ""
    same = version() == golden["nvrtc"]
    if not same:
        print(f"NVRTC {version()} is not {golden['nvrtc']}: registers are not compared, nor is the stack")
    figures = golden["kernels"][file]
    for name, resources in made.resources.items():
        assert not resources.spills, f"{name}: {resources}"
        if name not in figures:
            continue
        kept = Resources(*figures[name][f"sm_{architecture}"])
        assert resources.shared == kept.shared, name
        if same:
            assert resources == kept, name


def test_a_kernel_with_an_error_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "touch.cu").write_text((FOLDER / "touch.cu").read_text() + "\nundefined x;\n")
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    with pytest.raises(AssertionError, match="undefined"):
        compiled("touch.cu", INSTANCES["touch.cu"], WHOLE)


def test_a_warning_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / "touch.cu").read_text()
    (tmp_path / "touch.cu").write_text(text + "\n__global__ void more() { int never_used; }\n")
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    assert "never_used" in compiled("touch.cu", INSTANCES["touch.cu"], WHOLE).warnings


def test_a_spill_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / "matmul_register.cu").read_text()
    bounds = "__launch_bounds__(THREADS, 2)"
    assert bounds in text
    (tmp_path / "matmul_register.cu").write_text(text.replace(bounds, "__launch_bounds__(THREADS, 4)"))
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    made = compiled("matmul_register.cu", INSTANCES["matmul_register.cu"], WHOLE)
    assert all(resources.spills for resources in made.resources.values())


@pytest.mark.parametrize("name", ["transpose_tiled", "transpose_naive", *meshrun.jobs.kernels.FLOAT32])
def test_load_by_name_alone_takes_a_measured_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setitem(vars(meshrun), "kernel", lambda *words: asked.append(words))
    for file in (name, f"{name}.cu"):
        meshrun.jobs.kernels.load(file)
    assert asked[0] == asked[1]
    path, chosen, options = asked[0]
    assert path == FOLDER / f"{name}.cu"
    assert chosen in INSTANCES[path.name]
    assert ("--fmad=true" in options) == name.startswith("matmul")
    meshrun.jobs.kernels.load(name, "other<double>", ("-DX",))
    assert asked[2][1:] == ("other<double>", (asked[0][2][0], "-DX"))


def test_the_report_is_read() -> None:
    log = """ptxas info    : 42 bytes gmem
ptxas info    : Compiling entry function '_Z1aIfE' for 'sm_90'
ptxas info    : Function properties for _Z1aIfE
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 53 registers, used 1 barriers, 16 bytes cumulative stack size, 2112 bytes smem
ptxas info    : Compile time = 60.819 ms
ptxas info    : Compiling entry function '_Z1b' for 'sm_90'
ptxas info    : Function properties for _Z1b
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers"""
    assert read(log) == {"_Z1aIfE": Resources(53, 2112, 16, 4, 8), "_Z1b": Resources(8, 0, 0, 0, 0)}


def write() -> None:
    kernels: dict[str, dict[str, dict[str, list[int]]]] = {}
    for file in FILES:
        names = sorted(set(golden_instances(file)))
        kernels[file] = {name: {} for name in names}
        for architecture in sorted(ARCHITECTURES, key=int):
            for name, resources in compiled(file, names, architecture).resources.items():
                kernels[file][name][f"sm_{architecture}"] = list(asdict(resources).values())
    facts = {"nvrtc": version(), "figures": list(Resources.__dataclass_fields__), "kernels": kernels}
    text = json.dumps(facts, indent=1)
    # A line for each instance and architecture.
    text = re.sub(r"\[\s+([\d,\s]+?)\s+\]", lambda found: f"[{', '.join(found[1].split(','))}]", text)
    GOLDEN.write_text(re.sub(r",\s+(?=\d)", ", ", text) + "\n", encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    write()
