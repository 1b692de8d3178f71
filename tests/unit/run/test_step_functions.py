"""Functions of time: the number of the step and tables in time, in all ways to run a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshrun
from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import UserError
from meshrun.runner.forecast.plan import plan_record
from meshrun.runner.options.plan_options import plan_options
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.declare import distribute, map_blocks
from meshrun.runner.run.execute import Options, run
from meshrun.runner.steps.stepper import Stepper
from meshrun.runner.world.world import open_world

SHAPE, STEPS = (33, 25), 9
PROFILE = np.random.default_rng(1).random(SHAPE, dtype=np.float32)
TABLE = np.random.default_rng(2).random((STEPS + 1, 2), dtype=np.float32)


@distribute
def shot(u, step, table: meshrun.Series, *, rate: float = 0.1):
    """A source in time, and an edge that swings.

    table: the source's strength and the edge's, for each step.
    """
    new = u.copy()
    new[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
    new += table[step, 0] * PROFILE
    new[0] = table[step + 1, 1]
    new[-1] = np.where(step % 2 == 0, 1, -1)
    new[5, 7] += step * rate
    return new


@map_blocks(halo=1, boundary="wrap")
def ring(u, *, step: int, table: meshrun.Series):
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    return u[1:-1, 1:-1] + np.float32(0.1) * around + table[step][1] * (1 + step)


@map_blocks
def called(u, step, table: meshrun.Series):
    """Cannot be traced."""
    return u + table[step, 0] if step % 3 else u * table[step, 1]


def plain(job: Any) -> Callable[..., Any]:
    """The job's function on whole arrays."""
    if job is ring:
        return lambda u, **keywords: ring.function(np.pad(u, 1, mode="wrap"), **keywords)
    function: Callable[..., Any] = job.function
    return function


def stepped(job: Any, u: Any, steps: int) -> Any:
    for step in range(steps):
        u = plain(job)(u.copy(), step=step, table=TABLE)
    return u


def on_ranks(
    ranks: int, job: Any, source: Path, output: Path, options: Options, table: Any
) -> dict[str, Any]:
    def rank(control: Any) -> Any:
        world = open_world("cpu", control=control)
        return run(job, [source], [output], {"table": table}, options, world=world)

    return run_ranks(ranks, rank)[0]


def steps_of(**options: Any) -> Options:
    return Options(verify="full", steps=StepOptions(steps=STEPS, **options))


OPTIONS: dict[str, tuple[int, Options]] = {
    "one pass": (1, Options(verify="full")),
    "steps": (STEPS, steps_of()),
    "one copy": (STEPS, steps_of(copies="one")),
    "chunks": (STEPS, Options(steps=StepOptions(steps=STEPS), stream=StreamOptions(chunk_bytes=1 << 12))),
}


@pytest.fixture
def field(tmp_path: Path) -> Path:
    np.save(tmp_path / "u.npy", np.random.default_rng(0).random(SHAPE, dtype=np.float32))
    np.save(tmp_path / "table.npy", TABLE)
    return tmp_path / "u.npy"


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("job", [shot, ring, called], ids=lambda job: job.name)
def test_every_step_has_its_numbers(field: Path, job: Any, ranks: int, kind: str) -> None:
    steps, options = OPTIONS[kind]
    output = field.with_name("out.npy")
    on_ranks(ranks, job, field, output, options, field.with_name("table.npy"))
    assert np.load(output).tobytes() == stepped(job, np.load(field), steps).tobytes()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("job", [shot, ring], ids=lambda job: job.name)
@pytest.mark.parametrize("chunks", [None, 1 << 12])
def test_kernels_read_the_numbers_of_their_steps(
    field: Path, job: Any, ranks: int, chunks: int | None
) -> None:
    options = Options(
        fuse="require", steps=StepOptions(steps=STEPS), stream=StreamOptions(chunk_bytes=chunks)
    )
    output = field.with_name("out.npy")
    record = on_ranks(ranks, job, field, output, options, TABLE)
    assert record["steps"]["steps_per_kernel"] > 1
    assert np.load(output).tobytes() == stepped(job, np.load(field), STEPS).tobytes()


@pytest.mark.parametrize("job", [shot, ring, called], ids=lambda job: job.name)
@pytest.mark.parametrize("fuse", ["off", "auto"])
def test_a_resumed_run_goes_on_with_the_next_number(
    field: Path, job: Any, fuse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(resume: bool) -> Any:
        options = {"steps": STEPS, "checkpoint": 4, "fuse": fuse, "device": "cpu", "verify": "full"}
        return job.run(field, output, table=TABLE, resume=resume, **options)

    def broken(stepper: Stepper, *arguments: Any) -> None:
        if stepper.done == 6:
            raise RuntimeError("stopped")
        step(stepper, *arguments)

    step, output = Stepper._step, field.with_name("out.npy")
    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "_step", broken)
        with pytest.raises(RuntimeError, match="stopped"):
            take(resume=False)
    record = take(resume=True)
    assert record["steps"]["first"] == 4
    assert np.load(output).tobytes() == stepped(job, np.load(field), STEPS).tobytes()


@pytest.mark.parametrize("job", [shot, ring, called], ids=lambda job: job.name)
def test_iterate_counts_the_steps(job: Any) -> None:
    u = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    for number, found in enumerate(job.iterate(u, table=TABLE, steps=STEPS, every=2)):
        wanted = stepped(job, u, min(2 * number + 2, STEPS))
        assert found.tobytes() == wanted.tobytes()
    assert job(u, table=TABLE).tobytes() == stepped(job, u, 1).tobytes()


@pytest.mark.parametrize("job", [shot, ring, called], ids=lambda job: job.name)
def test_a_short_table_is_refused_before_the_first_step(job: Any, field: Path) -> None:
    output = field.with_name("out.npy")
    says = "step 8 cannot be taken.*out of bounds" if job is called else "table is too short for 9 steps"
    with pytest.raises(UserError, match=says) as refused:
        on_ranks(1, job, field, output, steps_of(), TABLE[:5])
    assert job is called or refused.value.expected == f"{STEPS + (job is shot)} rows"
    assert not output.exists()
    with pytest.raises(UserError, match=says):
        job.iterate(np.load(field), table=TABLE[:5], steps=STEPS)


def test_a_plan_names_the_file_of_a_table(field: Path) -> None:
    options = plan_options({"ranks": 2, "steps": STEPS})
    table = field.with_name("table.npy")
    for job in (shot, ring):
        record = plan_record(job, [field], {"table": table}, options)
        assert record["parameters"]["table"] == str(table)


def test_tables_are_files_and_arrays(tmp_path: Path) -> None:
    u = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    np.savetxt(tmp_path / "t.csv", TABLE, delimiter=",", header="strength,edge", comments="")
    np.save(tmp_path / "t.npy", TABLE)
    wanted = ring(u, table=TABLE)
    for table in (tmp_path / "t.npy", str(tmp_path / "t.npy"), TABLE.tolist(), meshrun.Series(TABLE)):
        assert np.array_equal(ring(u, table=table).astype("f4"), wanted)
    assert np.allclose(ring(u, table=tmp_path / "t.csv"), wanted)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.npy", None, "No such file"),
        ("t.npy", b"no array", "as a table of numbers"),
        ("t.txt", b"1", "ends in .npy or .csv"),
        ("t.csv", b"a,b\n", "it has no rows"),
        ("t.csv", b"1,2\n3\n", "as a table of numbers"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        ring(np.ones(SHAPE, "f4"), table=tmp_path / name)


@pytest.mark.parametrize(
    ("value", "says"), [("abc", "ends in"), (3, "neither a file nor an array"), (3.5, "neither")]
)
def test_values_that_are_no_tables(value: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ring(np.ones(SHAPE, "f4"), table=value)


def test_which_parameters_are_the_number_of_the_step() -> None:
    def services(function: Callable[..., Any]) -> tuple[bool, Sequence[str]]:
        job = map_blocks(function)
        return "step" in job.services, [one.name for one in job.parameters]

    assert services(lambda u, step: u) == (True, [])
    assert services(lambda u, *, step: u) == (True, [])
    assert services(lambda u, step=0: u) == (True, [])
    assert services(lambda u, step=0.5: u) == (False, ["step"])

    def annotated(u, step: int): ...
    def optional(u, *, step: float): ...

    assert services(annotated) == (True, [])
    assert services(optional) == (False, ["step"])


@pytest.mark.parametrize("fuse", ["off", "require"])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_fields_take_numbers_of_the_step(tmp_path: Path, dtype: str, fuse: Any) -> None:
    @distribute
    def driven(psi, step, table: meshrun.Series):
        psi = psi + table[step, 0] * 0.5
        psi[0] = table[step, 1]
        psi[3, 4] += 0.25 * (step % 3)
        psi[5] += 1j * table[step, 1]
        return psi.astype(dtype)

    start = np.random.default_rng(0).random(SHAPE).astype(dtype) * (1 + 2j)
    np.save(tmp_path / "psi.npy", start)
    wanted = start
    for step in range(STEPS):
        wanted = driven.function(wanted.copy(), step, TABLE)
    options = Options(verify="full", fuse=fuse, steps=StepOptions(steps=STEPS))
    on_ranks(2, driven, tmp_path / "psi.npy", tmp_path / "out.npy", options, TABLE)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)
