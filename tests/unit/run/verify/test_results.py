"""`--verify` on whole runs: what it must refuse, and what its function and its reference may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.arrays.store import Store
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

BIG = 2**53


def written_wrong(monkeypatch: pytest.MonkeyPatch, cell: int, by: int) -> None:
    """Every result that is written has one cell off."""
    original = Store.put

    def put(store: Store, region: Any, result: Any) -> None:
        result = result.copy()
        result.reshape(-1)[cell] += by
        original(store, region, result)

    monkeypatch.setattr(Store, "put", put)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("reference", [False, True])
def test_an_integer_above_2_to_the_53_that_is_one_off_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, reference: bool
) -> None:
    np.save(tmp_path / "in.npy", np.arange(8, dtype=dtype).reshape(4, 2))
    exact = (
        (lambda block: block.astype(np.int64).astype(dtype) * 2 + np.array(BIG, dtype)) if reference else None
    )

    @meshrun.map_blocks(reference=exact)
    def large(block: Any) -> Any:
        return block * 2 + np.array(BIG, dtype)

    large.run(tmp_path / "in.npy", tmp_path / "out.npy", verify="full", device="cpu")
    written_wrong(monkeypatch, 2, 1)  # to an odd number, which float64 rounds back
    with pytest.raises(RunError, match=r"cell \[1, 0\].* is wrong on disk \(1 of 4 cells") as caught:
        large.run(tmp_path / "in.npy", tmp_path / "out.npy", verify="full", device="cpu")
    assert (caught.value.got, caught.value.expected) == (BIG + 5, str(BIG + 4))


def test_the_tolerance_is_of_the_values_that_were_read_though_the_function_changes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "in.npy", np.full((4, 2), 1.0))

    @meshrun.map_blocks
    def one(block: Any) -> Any:
        result = block.copy()
        block[...] = 1e30
        return result

    written_wrong(monkeypatch, 3, 1)
    with pytest.raises(RunError, match="is wrong on disk"):
        one.run(tmp_path / "in.npy", tmp_path / "out.npy", verify="full", device="cpu")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda block: block[1:], "reference returned the wrong shape"),
        (lambda block: None, "reference did not return numbers"),
        (lambda block: "text", "reference did not return numbers"),
    ],
)
def test_a_reference_that_returns_nonsense_is_told_what(tmp_path: Path, reference: Any, words: str) -> None:
    np.save(tmp_path / "in.npy", np.ones((9, 4)))
    job = meshrun.map_blocks(reference=reference)(lambda block: block)
    with pytest.raises(RunError, match=words):
        job.run(tmp_path / "in.npy", tmp_path / "out.npy", verify="full", device="cpu")


def test_a_reference_may_return_one_number_for_all_cells(tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((9, 4)))
    job = meshrun.map_blocks(reference=lambda block: 1.0)(lambda block: block + 1)
    record = job.run(tmp_path / "in.npy", tmp_path / "out.npy", verify="full", device="cpu")
    assert record["verify"]["cells"] == 36


@meshrun.job(reference=lambda array, value="right": {"count": 10**10, "text": value})
def counted(input: Any, *, value: str = "right") -> dict[str, Any]:
    found: dict[str, Any] = {"count": 10**10, "text": "right"}
    return {**found, **OTHER}


OTHER: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"count": 10**10 + 5}, r"the result\['count'\] is wrong"),
        ({"more": 1}, r"the result\['more'\] is wrong"),
        ({"text": "wrong"}, r"the result\['text'\] is wrong"),
        ({"count": "many"}, r"the result\['count'\] is wrong"),
    ],
)
def test_a_wrong_result_without_an_array_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], sentence: str
) -> None:
    np.save(tmp_path / "in.npy", np.zeros(3))
    assert counted.run(tmp_path / "in.npy", verify="full", device="cpu")["verify"]["against"]
    monkeypatch.setitem(globals(), "OTHER", other)
    with pytest.raises(RunError, match=sentence):
        counted.run(tmp_path / "in.npy", verify="full", device="cpu")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "complex64"])
@pytest.mark.parametrize("steps", [None, 1])
def test_cells_that_the_function_leaves_unwritten_are_refused(
    tmp_path: Path, dtype: str, steps: int | None
) -> None:
    """The second computation leaves the same cells unwritten: they must not agree."""
    np.save(tmp_path / "in.npy", np.ones((6, 4), dtype))

    @meshrun.map_blocks
    def alternate(block: Any, *, out: Any) -> None:
        out[:, ::2] = block[:, ::2]

    with pytest.raises(RunError, match=r"cell \[0, 1\].* is wrong on disk \((12 of 24|6 of 12) cells"):
        alternate.run(tmp_path / "in.npy", tmp_path / "out.npy", verify="full", device="cpu", steps=steps)
    assert not (tmp_path / "out.npy").exists()


def first_row_of_each_block(block: Any) -> Any:
    after = block[1:-1] + 0
    after[0] = 1
    return after


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("steps", [None, 1, 5])
def test_a_result_that_depends_on_the_blocks_is_not_verified(
    tmp_path: Path, ranks: int, steps: int | None
) -> None:
    """Boxes are cut elsewhere than the run's blocks, also where an array fits one box."""
    job = meshrun.map_blocks(halo=(1,), split_dependent=True)(first_row_of_each_block)
    np.save(tmp_path / "in.npy", np.zeros((12, 6)))
    options = Options(verify="full", steps=StepOptions(steps))

    def rank(control: Any) -> None:
        world = open_world("cpu", control=control)
        run(job, tmp_path / "in.npy", tmp_path / "out.npy", options=options, world=world)

    with pytest.raises(meshrun.RunError, match="verification failed: cell"):
        run_ranks(ranks, rank)
