"""Checkpoints of a loop in a main program: saved every so often, restored on any number of ranks."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.report import progress
from meshrun.runner.run.main_program import checkpoint as checkpoints
from meshrun.runner.storage.formats.flat import FlatSink


class Stop(Exception):
    """Ends a program in its loop, on every rank."""

    everywhere = True


def in_world(ranks: int, body: Any, *, resume: bool = False) -> list[Any]:
    """Return what `body` returns on each rank; an exception ends all without closing the world's block."""

    def rank(control: Any) -> Any:
        world = meshrun.open_world("cpu", control=control, resume=resume)
        try:
            value = body(world)
        except BaseException:
            checkpoints.end_checkpoints(world, failed=True)
            raise
        world.__exit__(None, None, None)
        return value

    return run_ranks(ranks, rank)


def program(path: Path, stop: int | None = None, **options: Any) -> Any:
    """Return a program that takes 10 steps; it fails in step `stop`."""

    def body(world: Any) -> Any:
        u, v, gain, step = world.linspace(0, 1, 23), world.zeros((6, 5), "f4", split=1), np.float32(1), 0
        note, table = None, np.arange(3)
        while step < 10:
            u, v, gain, step, note, table = meshrun.checkpoint(
                path, u=u, v=v, gain=gain, step=step, note=note, table=table, **{"every": 3, **options}
            )
            if step == stop:
                raise Stop
            u[1:] = u[:-1] * gain + 0.1
            v += np.sum(u)
            gain, step, note, table = np.float32(gain * 1.1), step + 1, 2j * step, table + 1
        return u.gather(), v.gather(), gain, step, note, table

    return body


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert type(a) is type(b)


@pytest.mark.parametrize(("ranks", "resumed_on"), [(1, 3), (3, 2)])
def test_a_resumed_loop_has_the_same_bits(ranks: int, resumed_on: int, tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "heat"
    whole = in_world(ranks, program(tmp_path / "whole"))[0]
    with pytest.raises(Stop):
        in_world(ranks, program(path, stop=8))
    assert "has the state after 6 iterations" in capfd.readouterr().err
    folder = tmp_path / "heat.checkpoint"
    assert sorted(one.name for one in folder.iterdir()) == ["step-3", "step-6"]
    for found in in_world(resumed_on, program(path), resume=True):
        same(found, whole)
    assert "continuing after 6 iterations" in capfd.readouterr().err
    # The program has come to its end: it may begin again.
    assert sorted(one.name for one in folder.iterdir()) == ["ended", "step-6", "step-9"]
    same(in_world(1, program(path))[0], whole)
    assert not list(tmp_path.glob(".*.lock"))


def test_an_unfinished_program_is_not_begun_again(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        in_world(2, program(tmp_path / "heat", stop=4))
    with pytest.raises(UserError, match=r"state after 3 iterations.* --resume.*rm -r"):
        in_world(2, program(tmp_path / "heat"))


@pytest.mark.parametrize(
    ("words", "restarts", "resumed"),
    [([], "0", False), (["--resume"], "", True), ([], "1", True), (["--resumes"], "", False)],
)
def test_when_a_program_is_resumed(
    words: list[str], restarts: str, resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["cg.py", *words])
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    for choice, expected in ((None, resumed), (False, False), (True, True)):
        with meshrun.open_world("cpu", control=ThreadComm(), resume=choice) as world:
            assert world.checkpoints.resume == expected


def two_loops(path: Path, stop: int | None = None) -> Any:
    """Return a program of two loops; the first one fails in its step `stop`."""

    def body(world: Any) -> Any:
        began, u = [], world.ones(5)
        for name in ("first", "second"):
            step = 0
            while step < 7:
                u, step = meshrun.checkpoint(path.with_name(name), u=u, step=step, every=3)
                began += [step] if len(began) < 1 + (name == "second") else []
                if name == "first" and step == stop:
                    raise Stop
                u, step = u * 2, step + 1
        return began, u.gather()

    return body


def test_a_loop_does_not_continue_from_the_run_before_the_one_that_failed(tmp_path: Path) -> None:
    """The second loop's checkpoints are those of the first run, which came to its end."""
    wanted = in_world(1, two_loops(tmp_path / "u"))[0]
    with pytest.raises(Stop):
        in_world(1, two_loops(tmp_path / "u", stop=5))
    began, u = in_world(1, two_loops(tmp_path / "u"), resume=True)[0]
    assert began == [3, 0]
    same([u], [wanted[1]])


def test_how_many_are_kept(tmp_path: Path) -> None:
    in_world(1, program(tmp_path / "heat", every=1, keep=4))
    assert len(list((tmp_path / "heat.checkpoint").glob("step-*"))) == 4


def test_an_interval_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 1e6, 40.0))
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: float(next(clock)))
    in_world(1, program(tmp_path / "heat", every="1min"))
    assert len(list((tmp_path / "heat.checkpoint").glob("step-*"))) >= 2


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The path of a program that stopped after two checkpoints."""
    with pytest.raises(Stop):
        in_world(1, program(tmp_path / "heat", stop=8))
    return tmp_path / "heat"


def resumes(path: Path, **state: Any) -> Any:
    """Return a program that begins with another state."""

    def body(world: Any) -> None:
        begin: dict[str, Any] = {
            "u": world.zeros(23),
            "v": world.zeros((6, 5), "f4"),
            "gain": 1.0,
            "step": 0,
            "note": None,
            "table": np.arange(3),
        }
        changed = {name: one(world) if callable(one) else one for name, one in state.items()}
        meshrun.checkpoint(path, every=3, **{**begin, **changed})

    return body


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"u": lambda world: world.zeros(24)}, r"state\.u .*\(24,\).*expected state\.u .*\(23,\)"),
        ({"v": lambda world: world.zeros((6, 5))}, r"state\.v .*float64.*expected state\.v .*float32"),
        ({"table": np.arange(4)}, r"state\.table"),
        ({"more": 1}, r"state\.more"),
    ],
)
def test_another_state_is_refused(state: Any, message: str, stopped: Path) -> None:
    with pytest.raises(UserError, match=message):
        in_world(2, resumes(stopped, **state), resume=True)


def test_names_that_are_missing(stopped: Path) -> None:
    def body(world: Any) -> None:
        meshrun.checkpoint(stopped, u=world.zeros(23))

    with pytest.raises(UserError, match=r"differs in 5 value"):
        in_world(1, body, resume=True)


def test_another_program_is_refused(stopped: Path) -> None:
    for state in (stopped.parent / "heat.checkpoint").glob("step-*/state.json"):
        values = json.loads(state.read_text())
        values["fingerprint"]["program"] = "other.py"
        state.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r'program "test_checkpoint.py", expected program "other.py"'):
        in_world(2, program(stopped), resume=True)


def test_a_changed_program_continues_with_a_warning(stopped: Path) -> None:
    for state in (stopped.parent / "heat.checkpoint").glob("step-*/state.json"):
        values = json.loads(state.read_text())
        values["values"]["text"] = "0"
        state.write_text(json.dumps(values))

    def body(world: Any) -> list[str]:
        program(stopped)(world)
        return list(world.warnings)

    assert any("has changed" in line for line in in_world(1, body, resume=True)[0])


def test_a_damaged_checkpoint_gives_way_to_the_one_before(stopped: Path, capfd: Any) -> None:
    newest = stopped.parent / "heat.checkpoint" / "step-6"
    with open(newest / "u.npy", "r+b") as file:
        file.truncate(150)
    (newest.parent / ".next.partial").mkdir()  # of a program that was killed while it wrote one
    in_world(2, program(stopped), resume=True)
    assert "continuing after 3 iterations" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("of_rank", "message"),
    [
        ({1: {"other": 1}}, r"u, step.* on rank 0, .*u, step, other on rank 1"),
        ({1: {"step": 1}}, r"step = 0 on rank 0, 1 on rank 1"),
    ],
)
def test_ranks_that_differ(of_rank: Any, message: str, tmp_path: Path) -> None:
    def body(world: Any) -> None:
        meshrun.checkpoint(tmp_path / "a", u=world.zeros(9), **{"step": 0, **of_rank.get(world.rank, {})})

    with pytest.raises(UserError, match=message):
        in_world(2, body)


def test_ranks_that_save_to_different_places(tmp_path: Path) -> None:
    def body(world: Any) -> None:
        u = world.zeros(9)
        for _ in range(3):
            meshrun.checkpoint(tmp_path / "a", u=u, every=2)
        meshrun.checkpoint(tmp_path / "xy"[world.rank] if world.rank else tmp_path / "a", u=u, every=2)
        np.sum(u)

    with pytest.raises(UserError, match=r"different operations.*checkpoint.*/a.*checkpoint.*/y"):
        in_world(2, body)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"u": 1.0}, "one distributed array at least"),
        ({"every": 0}, "not an interval"),
        ({"every": 1.5}, "every"),
        ({"keep": 0}, "keep"),
        ({"thing": {1}}, "cannot save thing: got set"),
        ({"thing": np.array([None])}, "cannot save thing"),
    ],
)
def test_bad_arguments(arguments: Any, message: str, tmp_path: Path) -> None:
    def body(world: Any) -> None:
        meshrun.checkpoint(tmp_path / "a", **{"u": world.zeros(3), **arguments})

    with pytest.raises(UserError, match=message):
        in_world(1, body)


def test_a_path_is_of_one_loop(tmp_path: Path) -> None:
    def body(world: Any) -> None:
        meshrun.checkpoint(tmp_path / "a", u=world.zeros(3))
        meshrun.checkpoint(tmp_path / "a", v=world.zeros(3))

    with pytest.raises(UserError, match="another path for each loop"):
        in_world(1, body)


def test_two_programs_at_once(tmp_path: Path) -> None:
    def body(world: Any) -> None:
        meshrun.checkpoint(tmp_path / "a", u=world.zeros(3))
        in_world(1, lambda other: meshrun.checkpoint(tmp_path / "a", u=other.zeros(3)))

    with pytest.raises(UserError, match="another run is writing"):
        in_world(1, body)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = FlatSink.write

    def full(self: FlatSink, *arguments: Any) -> None:
        if "step-3" in os.listdir(tmp_path / "heat.checkpoint"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, *arguments)

    monkeypatch.setattr(FlatSink, "write", full)
    with pytest.raises((RunError, OSError)):
        in_world(2, program(tmp_path / "heat"))
    assert os.listdir(tmp_path / "heat.checkpoint") == ["step-3"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "heat.checkpoint").write_text("a file")
    with pytest.raises((UserError, RunError), match=r"heat\.checkpoint"):
        in_world(2, program(tmp_path / "heat"))
    with pytest.raises((UserError, RunError), match="missing"):
        in_world(2, program(tmp_path / "missing" / "heat"))


def test_a_job_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("u.npy", np.ones((7, 5)))

    @meshrun.job
    def cool(world: Any, input: Any, *, stop: int = -1) -> Any:
        u, step = meshrun.load(world, input), 0
        began = None
        while step < 10:
            u, step = meshrun.checkpoint("cool", u=u, step=step, every=3)
            began = step if began is None else began
            if step == stop:
                raise Stop
            u *= 0.9
            step += 1
        return {"sum": float(np.sum(u)), "began": began}

    whole = cool.run("u.npy", device="cpu")["result"]
    with pytest.raises(Stop):
        cool.run("u.npy", stop=7, device="cpu")
    with pytest.raises(UserError, match="resume=True"):
        cool.run("u.npy", device="cpu")
    assert cool.run("u.npy", resume=True, device="cpu")["result"] == {**whole, "began": 6}

    @meshrun.job
    def nothing(world: Any, input: Any) -> None:
        pass

    warnings = nothing.run("u.npy", resume=True, device="cpu")["warnings"]
    assert any("nothing to continue" in line for line in warnings)


# NaN


def growing(path: Path, nan: int, *, began: float = 0.0, name: str = "u") -> Any:
    """Return a program of 12 iterations, of which one makes a NaN on the last rank."""

    def body(world: Any) -> Any:
        u, v, size, step = world.ones((9, 4)), world.ones(7), 1.0, 0
        v[0] = began
        while step < 12:
            u, v, size, step = meshrun.checkpoint(path, u=u, v=v, size=size, step=step, every=2)
            step += 1
            if step == nan and name == "u":
                u[8, 3] = np.nan
            elif step == nan:
                size = float("nan")
        return list(world.warnings)

    return body


@pytest.mark.parametrize(
    ("name", "where"), [("u", r"u has a NaN, first in cell \[8, 3\], on \[rank "), ("size", "size is a NaN")]
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_nan_does_not_replace_good_checkpoints(name: str, where: str, ranks: int, tmp_path: Path) -> None:
    for warnings in in_world(ranks, growing(tmp_path / "u", 5, name=name)):
        (warning,) = warnings
        assert re.search(where, warning)
        assert "after 6 iterations" in warning
        assert "has the state after 4 iterations" in warning
    folders = (tmp_path / "u.checkpoint").glob("step-*")
    assert sorted(one.name for one in folders) == ["step-2", "step-4"]


def test_a_nan_before_the_first_checkpoint_is_said(tmp_path: Path) -> None:
    (warning,) = in_world(1, growing(tmp_path / "u", 1))[0]
    assert "there is no checkpoint" in warning
    assert not list((tmp_path / "u.checkpoint").glob("step-*"))


def test_a_nan_that_was_there_from_the_beginning_is_saved(tmp_path: Path) -> None:
    assert in_world(2, growing(tmp_path / "u", 99, began=np.nan)) == [[], []]
    assert (tmp_path / "u.checkpoint" / "step-10").is_dir()


# Progress


def test_the_iterations_of_a_loop_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    in_world(2, growing(tmp_path / "heat", 99))
    lines = [line for line in capfd.readouterr().err.splitlines() if "iteration " in line]
    assert len(lines) == 11  # of rank 0 alone
    assert lines[2].startswith("meshrun: heat: iteration 3: size = 1, step = 3, ")
    assert lines[2].endswith(" iterations/s")


def test_a_job_shows_the_iterations_of_its_loop(tmp_path: Path) -> None:
    shown = []

    def body(world: Any) -> None:
        world.checkpoints.progress = lambda line, count, text: shown.append((line, count, text()))
        growing(tmp_path / "heat", 99)(world)

    in_world(1, body)
    assert shown[0] == (0, 1, "size = 1, step = 1")
    assert len(shown) == 11
