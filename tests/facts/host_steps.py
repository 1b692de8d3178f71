"""Kernels of several steps, compiled for the host: on whole blocks, and as the kernel of a run's ranks."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from numpy_kernel import pass_and_store, with_ends

from meshrun.runner.compiler.cuda.beyond import NO_SIDES, Sides
from meshrun.runner.compiler.cuda.steps.kernel import build
from meshrun.runner.compiler.cuda.steps.layout import StepKernel
from meshrun.runner.compiler.cuda.steps.tuning import ChosenKernel
from meshrun.runner.compiler.device_kernel import DeviceKernel
from meshrun.runner.compiler.operations import KERNELS
from meshrun.runner.compiler.trace.evaluate import evaluate
from meshrun.runner.device.api import Device
from meshrun.runner.region import Shape

GXX = shutil.which("g++")
# -O1 takes half as long again to compile.
FLAGS = ("-std=c++17", "-Og", "-ffp-contract=off", "-shared", "-fPIC", "-w", f"-I{KERNELS}")
SHIM = Path(__file__).parents[1] / "unit" / "compiler" / "host" / "warps.h"
COMPILING = threading.Lock()
ATOMICS = Path(__file__).with_name("host_flags.h")


@cache
def _compiled_shim(folder: Path) -> Path:
    """Return the shim's copy in a folder, beside its compiled form, which takes g++ half as long to read."""
    copy = folder / SHIM.name
    shutil.copy(SHIM, copy)
    subprocess.run([str(GXX), *FLAGS, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"], check=True)
    return copy


@cache
def library(folder: Path, source: str, rank: int = 0) -> ctypes.CDLL:
    """run(grid, threads, shared, values) of a kernel. rank: each has static variables of its own."""
    found = re.search(r"^KERNEL\((\w+), (.*)\) {$", source, re.M)
    assert found
    given = ", ".join(f"values[{place}]" for place in range(len(found[2].split(","))))
    atomics = f'#include "{ATOMICS}"' if "u64* arrived" in source else ""
    text = f"""#include "{_compiled_shim(folder)}"
{atomics}
{source}
extern "C" void run(const unsigned* grid, unsigned threads, unsigned shared, const int64* values) {{
    static const int64* given = values;
    given = values;
    emulated::launch([] {{ const int64* values = given; {found[1]}({given}); }}, grid, threads, shared);
}}
"""
    key = hashlib.sha256(text.encode() + b"".join(p.read_bytes() for p in KERNELS.glob("*.cuh"))).hexdigest()
    made = folder / f"{key[:16]}.so"
    if not made.exists():
        path = made.with_suffix(".cpp")
        path.write_text(text)
        subprocess.run([str(GXX), *FLAGS, str(path), "-o", str(made)], check=True)
    return ctypes.CDLL(str(shutil.copy(made, made.with_name(f"{key[:16]}-{rank}.so")) if rank else made))


class HostStepKernel(DeviceKernel):
    """A task's kernel on the host: of several steps as on a GPU, of a single pass NumPy's.

    folder: of libraries. number: of the rank. late: called before each launch. changes: texts of the kernel
    that are there once, and what replaces them. launched: how many launches have ended; sending_launches:
    those of them that exchanged halos.
    """

    folder: Path
    number: int
    late: Callable[[HostStepKernel], None] = staticmethod(lambda kernel: None)
    changes: Sequence[tuple[str, str]] = ()
    launched = sending_launches = 0

    def __call__(
        self, blocks: Sequence[Any], outs: Sequence[Any], first: Sequence[int], scalars: Any = None
    ) -> None:
        found = self.finds_ends
        blocks = [with_ends(self, one) if place in found else one for place, one in enumerate(blocks)]
        for out, result in zip(outs, evaluate(self.program, blocks, self.widths, first), strict=True):
            out[...] = result

    def bind(
        self,
        blocks: Sequence[Any],
        outs: Sequence[Any],
        first: Sequence[int],
        scalars: Any = None,
        sides: Sides = NO_SIDES,
    ) -> Callable[[], None]:
        return functools.partial(pass_and_store, self, list(blocks), list(outs), first, scalars, sides)

    def choose(self, device: Device, shape: Shape, steps: int, grid: Shape = ()) -> ChosenKernel | None:
        return self.choice

    def _step_kernel(
        self, steps: int, vectors: bool, sends: bool
    ) -> tuple[StepKernel, Callable[..., None], int]:
        tuning = self._tuning(vectors=vectors)
        kernel = build(self.program, self.feeds, self.boundary, self.cval, steps, tuning, sends=sends)
        source = kernel.source
        for text, instead in self.changes:
            assert source.count(text) == 1, text
            source = source.replace(text, instead)
        with COMPILING:
            run = library(self.folder, source, self.number).run

        def launch(grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
            self.late(self)
            values = (ctypes.c_longlong * len(arguments))(*map(int, arguments))
            run((ctypes.c_uint * 3)(*grid), block[0], shared_mem, values)
            self.launched += 1
            self.sending_launches += sends

        return kernel, launch, kernel.registers
