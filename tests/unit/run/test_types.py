"""What type checkers see of a program that uses meshrun: right uses, and wrong ones with an error each."""

from __future__ import annotations

import inspect
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest

import meshrun

PROGRAM = """
from typing import Any
import numpy as np
import numpy.typing as npt
import meshrun
from meshrun import BlockContext, World

Array = npt.NDArray[np.float64]

@meshrun.map_blocks
def plain(block: Array) -> Array:
    return block

@meshrun.map_blocks(halo=1, boundary="wrap", fuse="off")
def rated(block: Array, *, out: Array, here: BlockContext, rate: float = 1.0) -> None:
    out[...] = rate * block[1:-1, 1:-1]

@meshrun.map_blocks
def placed(block: Array, *, out: Array, here: BlockContext) -> None:
    out[...] = block + here.offset[0]

@meshrun.map_blocks(outputs=2)
def wave(u: Array, v: Array, *, xp: Any) -> tuple[Array, Array]:
    return u, v

@meshrun.reduce_blocks(combine=lambda a, b: a + b)
def total(block: Array) -> float:
    return float(block.sum())

@meshrun.job
def size(world: World) -> dict[str, int]:
    return {"size": world.size}

plain.run("a.npy", "b.npy", verify=True, ranks=2, chunk_bytes="1M", grid=(2, 1), until=(1e-6, "u"))
plain.run("a.raw", "b.npy", shape=(3, 4), dtype="f4", order="F")
rated.run("a.npy", "b.npy", rate=0.1, device="cpu")
placed.run("a.npy", "b.npy", ranks=2)
wave.run(["a.npy", "b.npy"], ["c.npy", "d.npy"], steps=3)
seconds: float = total.run("a.npy")["seconds"]
plain.plan("a.npy", ranks=4).keys()
for state in rated.iterate(np.ones((3, 4)), steps=4, every=2, rate=0.1):
    print(state)
print(plain(np.ones(3)), rated(np.ones((3, 3)), rate=2.0), size.run("a.npy").items())

meshrun.map_blocks(boundary=("wrap", (0.0, "nearest")))
meshrun.map_blocks(boundary={"p": ("wrap", (0.0, "inflow")), "q": "mirror", "r": 1.5})
rated.run("a.npy", "b.npy", boundary={"block": (("nearest", 0.0), "wrap")})
meshrun.map_blocks(boundary=("wrap", ("wrap", "wrap", "wrap")))  # E
meshrun.map_blocks(boundary={"p": None})          # E
meshrun.map_blocks(bound="wrap")                  # E
meshrun.map_blocks(boundary="foo")                # E
meshrun.map_blocks(fuse="maybe")                  # E
meshrun.reduce_blocks()                           # E
meshrun.job(input=("a",))                         # E
plain.run("a.npy", "b.npy", rnaks=2)              # E
plain.run("a.npy", "b.npy", ranks="two")          # E
placed.run("a.npy", "b.npy", rnaks=2)             # E
placed.run("a.npy", "b.npy", out=np.ones(3))      # E
rated.run("a.npy", "b.npy", device="gpu")         # E
rated.run("a.npy", "b.npy", verify="some")        # E
wave.run("a.npy", "b.npy", halo="mpi")            # E
total.run("a.npy", frame_colors="red")            # E
size.run("a.npy", sizes=3)                        # E
plain.run("a.npy").wait()                         # E
plain.plan("a.npy")                               # E
plain.plan("a.npy", ranks=2, gpus="h200")         # E
plain.iterate(np.ones(3), step=3)                 # E
plain.iterate(np.ones(3), steps=3, rate=1.0)      # E
meshrun.map_block                                 # E
"""


@pytest.mark.nightly  # it reads all of the package: ten seconds
def test_a_type_checker_finds_each_mistake_and_no_other(tmp_path: Path) -> None:
    from mypy import api

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    wanted = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# E")}
    out, _, _ = api.run(["--strict", "--cache-dir", str(tmp_path), "--follow-imports=silent", str(program)])
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", out)}
    assert found == wanted, out


def test_only_public_names_are_listed() -> None:
    assert dir(meshrun) == sorted([*meshrun.__all__, "__version__"])
    assert not [name for name in dir(meshrun) if name.startswith("_") and name != "__version__"]


@meshrun.map_blocks
def scaled(block: Any, *, gain: float = 2.0) -> Any:
    """Scale an array.

    gain: factor.
    """
    return gain * block


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (lambda: pydoc.render_doc(meshrun, renderer=pydoc.plaintext), ["map_blocks", "logger"]),
        (lambda: inspect.getdoc(scaled), ["Scale an array.", "gain: factor.", "scaled.run(INPUT, OUTPUT, "]),
        (lambda: str(inspect.signature(scaled)), ["(block, /, *, gain: float = 2.0)"]),
        (lambda: pydoc.render_doc(scaled.run, renderer=pydoc.plaintext), ["device: DeviceChoice = 'auto'"]),
    ],
)
def test_help_shows_what_a_user_needs(shown: Any, words: list[str]) -> None:
    text = shown()
    assert all(word in text for word in words)
