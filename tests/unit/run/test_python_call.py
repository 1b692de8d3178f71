"""Runs from Python: arrays instead of files, ranks started from here, steps on arrays, help."""

from __future__ import annotations

import itertools
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.api import Control
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.report.summary import show_result
from meshrun.runner.run.execute import Options, run
from meshrun.runner.run.python_call import files_of
from meshrun.runner.run.record.printed import RunRecord
from meshrun.runner.system import launcher
from meshrun.runner.world.world import open_world

PROGRAM = """
import sys
import numpy as np
import meshrun

step = 0.25  # of this program, which no rank imports

@meshrun.map_blocks(halo=1, outputs=2, boundary="wrap")
def wave(now, before, *, speed=0.5):
    centre = now[1:-1, 1:-1]
    sides = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:] - 4 * centre
    return 2 * centre - before[1:-1, 1:-1] + step * speed * sides, centre.copy()

@meshrun.map_blocks
def broken(block):
    raise ValueError("as it happens")

@meshrun.reduce_blocks(combine=max)
def largest(block):
    return float(block.max())
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, *names in (*launcher.VARIABLES, *launcher.RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)


def python(folder: Path, text: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program whose functions are in no module that ranks could import, as those of a notebook."""
    command = [sys.executable, "-c", PROGRAM + text]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_functions_of_this_program_run_on_ranks_that_it_starts(tmp_path: Path) -> None:
    memory = tmp_path / "memory"  # in place of /dev/shm, which tests share
    memory.mkdir()
    created = memory.stat().st_mtime_ns
    done = python(
        tmp_path,
        """
from meshrun.runner.system import host_memory
host_memory.SHARED_MEMORY = host_memory.Path("memory").resolve()
a, b = np.random.default_rng(0).random((2, 20, 9))
after, old = np.empty_like(a), np.empty_like(b)
record = wave.run((a, b), (after, old), ranks=3, steps=7, speed=0.3, device="cpu", verify="full")
assert record["ranks"] == 3 and record["steps"]["steps"] == 7, record
assert "7 steps" in str(record) and record._repr_html_().startswith("<pre>wave on 20x9 float64: 3 ranks")
expected = wave.iterate(a, b, steps=7, speed=0.3)
np.testing.assert_array_equal(after, expected[0])
np.testing.assert_array_equal(old, expected[1])
np.save("a.npy", a)
found = largest.run("a.npy", ranks=2, device="cpu")
assert found["result"] == a.max(), found["result"]
for job, more in ((wave, {"grid": "5"}), (broken, {})):
    try:
        job.run([a, b][: len(job.arrays)], [after, old][: len(job.arrays)], ranks=2, device="cpu", **more)
    except meshrun.MeshrunError as failure:
        print(type(failure).__name__, failure)
""",
    )
    first, second = done.stdout.splitlines()
    assert first == (
        "UserError grid does not use every rank exactly once: got 5 on 2 rank(s), expected blocks that "
        "multiply to 2. Try: grid='0'"
    )
    assert second.startswith("RunError ValueError: as it happens (<string>:")
    assert "as it happens" not in done.stderr, "what is raised is not printed too"
    assert memory.stat().st_mtime_ns > created, "the arrays of the ranks are in memory"
    assert not list(memory.iterdir())


@meshrun.map_blocks(halo=1)
def smear(block: Any, *, weight: float = 0.5) -> Any:
    """Mix each cell with its right neighbour.

    weight: of the neighbour.
    """
    return (1 - weight) * block[1:-1, 1:-1] + weight * block[1:-1, 2:]


def test_what_ranks_print_is_passed_on_whatever_it_is(tmp_path: Path) -> None:
    """A reader that stopped would let the ranks wait for ever."""
    done = python(
        tmp_path,
        """
import os

@meshrun.map_blocks
def loud(block):
    os.write(2, b"\\xff\\xfe is no UTF-8\\n" * 20_000)
    return block

result = np.empty(8)
loud.run(np.arange(8.0), result, ranks=2, device="cpu")
np.testing.assert_array_equal(result, np.arange(8.0))
""",
    )
    assert done.stderr.count("is no UTF-8") >= 40_000
    assert "Traceback" not in done.stderr


def test_arrays_stand_for_files(tmp_path: Path) -> None:
    array = np.random.default_rng(1).random((9, 6))
    result = np.empty_like(array)
    record = smear.run(array, result, device="cpu", weight=0.25)
    assert isinstance(record, RunRecord)
    np.testing.assert_array_equal(result, smear(array, weight=0.25))
    np.save(tmp_path / "in.npy", array)
    smear.run(tmp_path / "in.npy", result, device="cpu", steps=3)
    np.testing.assert_array_equal(result, smear(smear(smear(array))))


def test_an_array_without_numbers_is_refused_without_naming_a_file_of_ours(tmp_path: Path) -> None:
    both = meshrun.map_blocks(lambda now, before: (now, before))
    records = np.zeros((4, 4), [("a", "f4"), ("b", "i4")])
    one = meshrun.map_blocks(lambda block: block)
    with pytest.raises(meshrun.UserError, match=r"^the input holds no numbers: got dtype \[\('a'"):
        one.run(records, tmp_path / "out.npy")
    with pytest.raises(meshrun.UserError, match=r"^the input before holds no numbers: got dtype object"):
        both.run([np.zeros(3), np.array([None])], tmp_path / "out.npy")


def test_an_array_that_a_result_does_not_fit_is_refused() -> None:
    with pytest.raises(
        meshrun.UserError, match="the array for the result output does not fit: got float32 of"
    ):
        smear.run(np.ones((4, 4)), np.empty((4, 4), np.float32), device="cpu")


def test_a_read_only_array_for_a_result_is_refused_before_the_run(tmp_path: Path) -> None:
    result = np.zeros((4, 2))
    result.flags.writeable = False
    called = []
    job = meshrun.map_blocks(lambda block: called.append(1) or block, name="job", fuse="off")
    with pytest.raises(meshrun.UserError, match="the array for the result output is read-only"):
        job.run(np.ones((4, 2)), result)
    assert not called


def test_arrays_of_two_results_have_memory_of_their_own() -> None:
    job = meshrun.map_blocks(lambda block: (block, -block), outputs=("one", "other"), name="job", fuse="off")
    array, pairs = np.arange(6.0), np.zeros((6, 2))
    job.run(array, [pairs[:, 0], pairs[:, 1]])
    np.testing.assert_array_equal(pairs, np.stack([array, -array], 1))
    with pytest.raises(meshrun.UserError, match="for the results one and other share memory"):
        job.run(array, [pairs[:, 0], pairs[:, 0]])


def test_no_array_is_filled_if_one_does_not_fit_its_result() -> None:
    job = meshrun.map_blocks(lambda block: (block, -block), outputs=2, name="job", fuse="off")
    first, second = np.zeros(6), np.zeros(6, np.int64)
    with pytest.raises(meshrun.UserError, match="does not fit: got int64"):
        job.run(np.arange(6.0), [first, second])
    assert not first.any()


@pytest.mark.parametrize("ranks", [0, -1, True, "2", 1.5, np.float64(1)])
def test_a_number_of_ranks_that_is_none_is_refused(ranks: Any) -> None:
    with pytest.raises(meshrun.UserError, match="Invalid value for 'ranks'"):
        smear.run(np.ones((4, 4)), np.empty((4, 4)), ranks=ranks)


def test_a_launchers_ranks_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(meshrun.UserError, match="launcher: got ranks=2, expected 3"):
        smear.run("in.npy", "out.npy", ranks=2)


def on_thread_ranks(ranks: int, arguments: Any, options: Options | None = None) -> list[Any]:
    """Run `smear` as a program on several ranks does. arguments: of a rank, its inputs and outputs."""

    def rank(control: Control) -> Any:
        world = open_world("cpu", control=control)
        inputs, outputs = arguments(world.rank)
        with files_of(smear, inputs, outputs, options or Options(), world) as (ins, outs):
            record = run(smear, ins, outs, {}, options, world=world)
        return record, outputs

    return run_ranks(ranks, rank, timeout=60)


def test_each_rank_of_a_launcher_passes_the_array_and_gets_the_result(tmp_path: Path) -> None:
    array = np.random.default_rng(2).random((8, 5))
    np.save(tmp_path / "in.npy", array)
    cases: list[Any] = [
        lambda rank: ([array.copy()], [np.zeros_like(array)]),
        lambda rank: ([np.asfortranarray(array)], [np.zeros(array.shape, order="F")]),
        lambda rank: ([str(tmp_path / "in.npy")], [np.zeros_like(array)]),
    ]
    for arguments in cases:
        for record, (result,) in on_thread_ranks(3, arguments):
            assert record["ranks"] == 3
            np.testing.assert_array_equal(result, smear(array))
    for _, (path,) in on_thread_ranks(3, lambda rank: ([array], [str(tmp_path / "out.npy")])):
        np.testing.assert_array_equal(np.load(path), smear(array))


def zeros(*shape: int) -> Any:
    return np.zeros(shape)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            lambda rank: ([np.full((8, 5), rank > 1, float)], [zeros(8, 5)]),
            r"job smear: the ranks pass different arrays for block: got float64 of shape \(8, 5\) with "
            r"checksum \w+ on rank 0, float64 of shape \(8, 5\) with checksum \w+ on rank 2",
        ),
        (lambda rank: ([np.ones((8, 5), "f4" if rank else "f8")], [zeros(8, 5)]), "got float64 .* float32"),
        (lambda rank: ([zeros(8, 5 + rank)], [zeros(8, 5)]), r"\(8, 5\).*on rank 0.*\(8, 6\)"),
        (lambda rank: ([zeros(8, 5)], [zeros(8, 5) if rank else "out.npy"]), "for output: got out.npy on"),
        (lambda rank: ([zeros(8, 5)], [zeros(8, 4 + bool(rank))]), "for output: got float64 of shape"),
        (lambda rank: ([zeros(8, 5)], [zeros(8, 4)]), r"does not fit.*\(8, 4\), expected.*\(8, 5\)"),
        (lambda rank: ([zeros(8, 5)], [zeros(8, 5)] * (rank == 0)), "pass different numbers of arrays"),
        (lambda rank: ([zeros(8, 5)], []), "OUTPUT is missing|takes 1 input"),
        (lambda rank: ([np.array(["a"])], [zeros(1)]), "holds no numbers"),
    ],
)
def test_arrays_that_do_not_agree_are_refused_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, sentence: str
) -> None:
    monkeypatch.setattr("meshrun.runner.system.host_memory.SHARED_MEMORY", tmp_path)
    with pytest.raises(meshrun.UserError, match=sentence) as refused:
        on_thread_ranks(3, arguments)
    assert refused.value.everywhere
    assert list(tmp_path.iterdir()) == []


def test_an_array_may_be_its_own_result_on_ranks_too() -> None:
    array = np.random.default_rng(2).random((8, 5))
    whole = [array.copy() for _ in range(2)]
    with pytest.raises(meshrun.UserError, match="shares memory with the input"):
        on_thread_ranks(2, lambda rank: ([whole[rank]], [whole[rank]]))
    on_thread_ranks(2, lambda rank: ([whole[rank]], [whole[rank]]), Options(overwrite_input=True))
    for result in whole:
        np.testing.assert_array_equal(result, smear(array))


def test_several_hosts_need_a_folder_that_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    array, names = np.ones((8, 5)), itertools.cycle(("one", "two"))
    monkeypatch.setattr("meshrun.runner.world.world.identify_host", lambda: (name := next(names), name))
    for record, (result,) in on_thread_ranks(2, lambda rank: ([array], [np.zeros_like(array)])):
        assert len(record["hosts"]) == 2
        np.testing.assert_array_equal(result, smear(array))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("meshrun.runner.run.python_call.Path.is_dir", lambda path: False)
    with pytest.raises(meshrun.UserError, match=r"files in .*, which this host does not share"):
        on_thread_ranks(2, lambda rank: ([array], [np.zeros_like(array)]))


def test_steps_on_arrays_equal_calls_in_a_loop() -> None:
    array = np.random.default_rng(2).random((8, 5))
    expected = array
    for _ in range(5):
        expected = smear(expected)
    np.testing.assert_array_equal(smear.iterate(array, steps=5), expected)
    numbers = {"steps": np.int64(5), "every": np.uint8(5)}
    np.testing.assert_array_equal(*smear.iterate(array, **numbers), expected)


def test_stages_are_yielded_every_so_many_steps_and_at_the_end() -> None:
    array, calls = np.arange(4.0), []

    @meshrun.map_blocks(outputs=("next", "total"), feeds=("block", None), split_dependent=True)
    def counts(block: Any) -> Any:
        calls.append(1)
        return block + 1, block * 10

    stages = counts.iterate(array, steps=7, every=3)
    first = next(stages)
    assert len(calls) < 7, "steps are taken when they are asked for"
    found = [first, *stages]
    assert [(one[0][0], one[1][0]) for one in found] == [(3.0, 20.0), (6.0, 50.0), (7.0, 60.0)]
    assert array[0] == 0.0


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"steps": 0}, "Invalid value for 'steps'"),
        ({"steps": None}, "Invalid value for 'steps'"),
        ({"steps": 2, "every": 0}, "Invalid value for 'every'"),
        ({"steps": 2, "speed": 1}, "job smear has no such parameter"),
    ],
)
def test_steps_on_arrays_refuse_what_the_command_refuses(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(meshrun.UserError, match=said):
        smear.iterate(np.ones((4, 4)), **keywords)


@pytest.mark.parametrize("path", ["photo.npy", Path("photo.npy")])
def test_a_call_with_a_path_says_what_takes_files(path: Any) -> None:
    said = r"a call of job smear takes arrays, not files: got photo.npy. Try: smear.run\(INPUT, ..., OUTPUT\)"
    with pytest.raises(meshrun.UserError, match=said):
        smear(path)
    with pytest.raises(meshrun.UserError, match=said):
        smear.iterate(path, steps=2)


def test_help_shows_the_functions_docstring_and_options() -> None:
    text = pydoc.render_doc(smear, renderer=pydoc.plaintext)
    assert "Mix each cell with its right neighbour." in text
    assert "smear(block, weight=0.5)  on whole arrays, in this process" in text
    assert "weight: of the neighbour." in text
    assert repr(smear) == "<meshrun job smear (block -> output)>"


def test_a_plan_of_an_array_says_what_to_give_instead() -> None:
    job = meshrun.map_blocks(lambda block: block)
    with pytest.raises(meshrun.UserError, match=r"of files: got ndarray, expected paths.*input_shape=array"):
        job.plan(np.zeros((3, 4)), ranks=2)  # type: ignore[arg-type]


def test_a_plan_shows_itself_as_the_command_does(tmp_path: Path) -> None:
    job = meshrun.map_blocks(lambda block, *, gain=1.0: gain * block, name="scaled")
    np.save(tmp_path / "in.npy", np.zeros((4000, 100), np.float32))
    plan = job.plan(tmp_path / "in.npy", ranks=2, gpu="h200", gain=2.0)
    assert plan["parameters"] == {"gain": 2.0}
    assert str(plan).startswith("scaled on 4000x100 float32")
    assert plan._repr_html_().startswith("<pre>scaled on 4000x100 float32")
    described = job.plan(ranks=2, gpu="h200", input_shape=(4000, 100), input_dtype=np.float32, gain=2.0)
    assert described == plan
    small = job.plan(tmp_path / "in.npy", ranks=2, gpu="h200", chunk_bytes="64K")
    assert small["streamed"]
    assert small == job.plan(tmp_path / "in.npy", ranks=2, gpu="h200", chunk_bytes=65536)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "Invalid value for 'ranks': 0 is not in the range 1<=x<=131072"),
        ({"ranks": "2"}, "Invalid value for 'ranks': '2' is not a valid integer"),
        ({"hosts": 0}, "Invalid value for 'hosts': 0 is not in the range"),
        ({"gpu": 5}, "Invalid value for 'gpu': 5 is not a text"),
        ({"depth": 0}, "Invalid value for 'depth': 0 is not in the range"),
        ({"cval": "a"}, "Invalid value for 'cval': 'a' is not a valid float"),
        ({"steps": 0}, "Invalid value for 'steps': 0 is not in the range"),
        ({"copies": "three"}, "Invalid value for 'copies': 'three' is not one of"),
        ({"steps": 9, "chunk_bytes": "64K"}, "steps in chunks have no plan: got chunk_bytes=65536"),
        ({"hosts": 3}, "hosts is more than ranks: got 3 hosts, expected at most 2"),
    ],
)
def test_a_wrong_value_of_a_plan_is_named_as_it_was_given(options: dict[str, Any], message: str) -> None:
    job = meshrun.map_blocks(lambda block: block, name="same")
    given = {"ranks": 2, "gpu": "h200", "input_shape": "400x400", "input_dtype": "f4"} | options
    with pytest.raises(meshrun.UserError, match=re.escape(message)):
        job.plan(**given)


def test_steps_are_planned() -> None:
    job = meshrun.map_blocks(lambda block: block, name="same")
    plan = job.plan(ranks=2, gpu="h200", input_shape=(400, 400), input_dtype="f4", steps=9)
    assert plan["steps"] == 9
    assert str(plan).startswith("same on 400x400 float32")


def test_a_plan_that_cannot_be_made_says_why() -> None:
    job = meshrun.map_blocks(lambda block: block, name="same")
    with pytest.raises(meshrun.UserError, match="no array to plan for"):
        job.plan(ranks=2)
    with pytest.raises(meshrun.UserError, match="gian"):
        job.plan(ranks=2, input_shape="4x4", input_dtype="f4", gian=2.0)
    with pytest.raises(meshrun.UserError, match="cannot be planned"):
        meshrun.reduce_blocks(lambda block: 0, combine=max).plan(ranks=2, input_shape="4x4", input_dtype="f4")


@pytest.mark.parametrize(
    ("returned", "result", "text"),
    [
        (3.5, 3.5, "result: 3.5\n"),
        (np.float32(2), 2.0, "result: 2.0\n"),
        (np.arange(2), [0, 1], "result: [0, 1]\n"),
        ({"low": 1, "high": 2}, {"low": 1, "high": 2}, "low: 1\nhigh: 2\n"),
        (None, None, "\n"),
    ],
)
def test_the_result_is_what_the_job_returned(
    tmp_path: Path, returned: Any, result: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "in.npy", np.zeros(3))

    @meshrun.job
    def returns(world: Any, input: Any) -> Any:
        return returned

    record = returns.run(tmp_path / "in.npy")
    assert record["result"] == result
    assert str(record).endswith(text)
    show_result(record["result"], sys.stdout)
    assert capsys.readouterr().out == text.lstrip("\n")
