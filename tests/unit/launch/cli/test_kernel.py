"""`meshrun kernel`: the text it prints, what it says of it, and every mistake as one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshrun.runner.device
from meshrun.launch.cli.main import main
from meshrun.runner.system.compiler import NotCompiled

JOBS = """
import meshrun

@meshrun.map_blocks(halo=1)
def heat(field, *, rate: float = 0.25):
    centre = field[1:-1, 1:-1]
    sides = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
    return centre + rate * (sides - 4 * centre)

@meshrun.map_blocks
def wavy(block, *, xp):
    return xp.sin(block)

@meshrun.map_blocks(halo=1)
def decides(block):
    if block.sum() > 3:
        return block[1:-1, 1:-1]
    return block[1:-1, 1:-1] * 2

@meshrun.map_blocks
def masked(field, kinds, *, xp):
    root = field
    for _ in range(3):
        root = xp.sqrt(root)
    is_hot = field > 100
    root = xp.where(is_hot, root, field)
    wall = (field / 3 + 1) / 7 + field / 11
    return xp.where(kinds != 0, wall, root)

@meshrun.distribute
def plate(u):
    new = u.copy()
    new[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    new[0] = u[3]
    return new

@meshrun.map_blocks
def clash(block, *, cpu: bool = False):
    return block

@meshrun.map_blocks
def tangent(block, *, xp):
    return xp.tan(block)

@meshrun.map_blocks(halo=1, boundary="wrap", feeds="psi")
def schroedinger(psi):
    around = psi[2:, 1:-1] + psi[:-2, 1:-1] + psi[1:-1, 2:] + psi[1:-1, :-2] - 4 * psi[1:-1, 1:-1]
    return psi[1:-1, 1:-1] + 0.01j * around
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(JOBS)
    np.save("in.npy", np.zeros((30, 20), np.float32))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert main(["kernel", *words]) == 0
    written = capsys.readouterr()
    return written.out, written.err


def test_several_steps_of_complex_numbers_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("mine.py:schroedinger", "--shape", "256x256", "--input-dtype", "complex64")
    source, facts = shown(capsys, *given, "--steps", "3")
    assert "take_3_steps" in source
    assert "#define PAIRS(X) X(0, 1, float)\n" in source  # both parts in one access
    assert "each cell read and written once in 3 steps" in facts
    # Two parts of each sum, 4 * psi and the product with 0.01j, whose real part has a sign.
    assert "16 bytes of memory, 15 operations" in facts
    assert "a GPU computes about 112 operations while it moves these bytes" in facts


def test_cuda_is_printed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    source, facts = shown(capsys, "mine.py:heat", "in.npy", "--rate", "0.125")
    assert "single_pass(" in source
    assert "0x1.0000000000000p-3f" in source  # the rate
    assert "field        read from -1..+1 x -1..+1" in facts
    assert "8 bytes of memory, 7 operations" in facts
    assert "limit        memory" in facts


def test_so_are_steps_and_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    source, facts = shown(
        capsys, "mine.py:heat", "--shape", "90x90", "--input-dtype", "float64", "--steps", "3"
    )
    assert "take_3_steps" in source
    assert "each cell read and written once in 3 steps" in facts
    source, facts = shown(capsys, "mine.py:wavy", "in.npy", "--cpu")
    assert "numpy::sin<float>" in source
    assert "last bits    of sin depend on the device" in facts


@pytest.mark.parametrize(("words", "together"), [((), "a thread"), (("--cpu",), "a row's segment")])
def test_branches_are_listed_with_their_lines_and_costs(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], together: str
) -> None:
    np.save("kinds.npy", np.zeros((30, 20), np.uint8))
    _, facts = shown(capsys, "mine.py:masked", "in.npy", "kinds.npy", *words)
    listed = facts[facts.index("branches") :].splitlines()
    assert listed[:3] == [
        f"branches     2 operations for cells of {together} that take none",
        "line 25      3 operations more where its condition is true",
        "line 28      5 operations more where its condition is true",
    ]


def test_so_are_the_kernels_of_built_in_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["laplacian"],
        ["convolve", "--kernel", "1 2 1"],
        ["elementwise", "--expression", "sqrt(x)"],
    ):
        source, facts = shown(capsys, *words, "in.npy")
        assert "single_pass(" in source
        assert "8 bytes of memory" in facts


def test_a_kernel_that_does_not_compile_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel_of_text(*given: Any) -> Any:
        raise NotCompiled("CUDA's compiler fails: it is tired")

    cuda = SimpleNamespace(kernel_of_text=kernel_of_text, count=lambda: 1)
    nvrtc = SimpleNamespace(registers_of=None)
    for name, module in (("cuda", cuda), ("nvrtc", nvrtc)):
        monkeypatch.setitem(sys.modules, f"meshrun.runner.device.{name}", module)
        monkeypatch.setattr(meshrun.runner.device, name, module, raising=False)
    source, facts = shown(capsys, "mine.py:heat", "in.npy")
    assert "single_pass(" in source
    assert "registers    not known: CUDA's compiler fails: it is tired" in facts


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mine.py:decides", "in.npy"], "mine.py, line 16: reduces the cells of a block"),
        (["statistics", "in.npy"], "job statistics has no kernel"),
        (["mine.py:heat"], "neither INPUT nor --shape"),
        (["mine.py:clash", "in.npy", "--run-cpu=3"], "'--run-cpu' does not take a value"),
        (
            ["mine.py:tangent", "--shape", "5x4x3", "--input-dtype", "complex64"],
            "numpy.tan of complex numbers",
        ),
        (["mine.py:heat", "in.npy", "--steps", "17"], "17"),
    ],
)
def test_mistakes_are_sentences(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["kernel", *words]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert sentence in written.err
    assert "Traceback" not in written.err


def test_a_function_of_whole_arrays_has_cells_far_from_the_ends_and_near_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in ([], ["--cpu"], ["--steps", "2"]):
        source, facts = shown(capsys, "mine.py:plate", "in.npy", *words)
        assert "inside<" in source
        assert "u            read from -1..+1 x -1..+1\n" in facts
        assert "a cell       8 bytes of memory, 7 operations\n" in facts
        assert "at the ends  13 operations for the first + last cells of each axis: 1 + 1 x 1 + 1\n" in facts
        assert "u read from -1..+3 x -1..+1\n" in facts
