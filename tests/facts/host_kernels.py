"""Kernels compiled for the host: one library for each .cu file, with all instances that tests launch there.

The first process that needs a library makes it; later ones, and later runs, find it under the same name as
long as all that goes into it is the same.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from measured_kernels import INSTANCES

import meshrun.jobs.kernels
from meshrun.jobs.filters.dtypes import SUPPORTED, WIDE
from meshrun.jobs.kernels import instance
from meshrun.jobs.measure.exact_reductions import RecipeKind

GXX = shutil.which("g++")
KERNELS = Path(meshrun.jobs.kernels.__file__).parent
SHIM = Path(__file__).parents[1] / "unit" / "kernels" / "host"
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas",
         "-Wno-sign-compare", f"-I{SHIM}", f"-I{KERNELS}")  # fmt: skip

# Elements, sums and results of what the tests of convolve compute.
CONVOLVED = (
    ("uint8", "int32", "uint8"), ("uint8", "int32", "int16"), ("uint8", "float64", "uint8"),
    ("uint16", "int64", "int32"), ("int32", "int64", "int32"), ("float16", "float32", "float16"),
    ("float32", "float32", "float32"), ("float64", "float64", "int32"), ("bool", "int32", "uint8"),
    ("int8", "int32", "int64"), ("uint32", "int64", "uint32"), ("int64", WIDE, "int64"),
    ("int64", WIDE, "float32"), ("uint64", WIDE, "uint64"), ("uint64", "float64", "uint64"),
)  # fmt: skip

Options = tuple[str, ...]
Instance = tuple[str, Options]  # of a template, with the compiler's options for it


def instances(file: str) -> Iterator[Instance]:
    """Those that tests launch, and a few that none does."""
    sources = [np.dtype(name) for name in SUPPORTED]
    if file == "bench_data.cu":
        for kernel, word, kind in product(("fill", "verify"), ("u1", "u2", "u4", "u8"), RecipeKind):
            yield instance(kernel, word, int(kind)), ()
    elif file == "convolve.cu":
        yield from ((instance("convolve", *dtypes), ()) for dtypes in CONVOLVED)
    elif file == "links.cu":
        yield from ((name, ()) for name in INSTANCES[file])
    elif file == "round_bfloat16.cu":
        kinds = [name for name in SUPPORTED if name in ("bool", "int64", "float16", "float32", "float64")]
        yield from ((instance("round_bfloat16", *words), ()) for words in product(kinds, (1, 4)))
    elif file in ("moments.cu", "histogram.cu"):
        yield from ((instance(file.removesuffix(".cu"), source), ()) for source in sources)


def run(folder: Path, file: str, name: str, options: Options = ()) -> Callable[..., None]:
    """run(grid, block, arguments, synchronizes) of an instance. folder: where libraries are kept."""
    known = tuple(dict.fromkeys(instances(file)))
    chosen = known if (name, options) in known else ((name, options),)
    return library(folder, file, chosen)[f"run{chosen.index((name, options))}"]


@functools.cache
def library(folder: Path, file: str, chosen: Sequence[Instance]) -> ctypes.CDLL:
    """`run0`, `run1`, ... of the chosen instances, in their order."""
    assert GXX is not None
    text = source(file, chosen)
    parts = [text.encode(), " ".join(FLAGS).encode(), Path(GXX).resolve().name.encode()]
    parts += [path.read_bytes() for path in (KERNELS / file, *sorted(KERNELS.glob("*.cuh")), *SHIM.iterdir())]
    made = folder / f"{Path(file).stem}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    if not made.exists():
        # Two processes may do this at once: each makes its own, and the last one to be renamed stays.
        with tempfile.TemporaryDirectory(dir=folder) as name:
            written, compiled = Path(name, "kernels.cpp"), Path(name, "kernels.so")
            written.write_text(text)
            subprocess.run([GXX, *FLAGS, str(written), "-o", str(compiled)], check=True)
            os.replace(compiled, made)
    return ctypes.CDLL(str(made))


def source(file: str, chosen: Sequence[Instance]) -> str:
    """C++ that has each instance as a function; the kernel once for each set of options."""
    headers = re.findall(r'^#include ".*"$', (KERNELS / file).read_text(), re.M)
    lines = ['#include "cuda_fp16.h"', *headers]
    together = dict.fromkeys(options for _, options in chosen)
    spaces = {options: f"with{number}" for number, options in enumerate(together)}
    for options, space in spaces.items():
        defined = [option.removeprefix("-D").partition("=") for option in options]
        lines += [f"#define {name} {value}" for name, _, value in defined]
        lines += [f"namespace {space} {{", f'#include "{KERNELS / file}"', "}"]
        lines += [f"#undef {name}" for name, _, _ in defined]
    for number, (name, options) in enumerate(chosen):
        head = f'extern "C" void run{number}(unsigned grid, unsigned block, void** arguments, int syncs)'
        call = f"launch({spaces[options]}::{name}, grid, block, arguments, syncs);"
        lines.append(f"{head} {{ {call} }}")
    return "\n".join(lines) + "\n"
