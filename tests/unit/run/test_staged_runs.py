"""Functions of whole arrays in stages as jobs: one pass, steps, checkpoints, frames, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_ways import compiled

from meshrun.runner.comm.threads import run_ranks
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.options.step_options import SaveInterval, StepOptions
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.run.declare import distribute
from meshrun.runner.run.execute import Options, run
from meshrun.runner.run.verify import program as verification
from meshrun.runner.world.world import open_world


@distribute(outputs=("u", "t", "energy"))
def heat(u, t, *, c: float = 0.5):
    """Heat with a step in time that depends on the largest value."""
    dt = 0.2 / (np.max(np.abs(u)) + c)
    u[1:-1, 1:-1] += dt * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    u[0], u[-1] = 1, 0
    t += dt
    return u, t, (u * u).sum()


@distribute
def normalised(t, u):
    """The first input is a value."""
    return u / (np.linalg.norm(u) + t)


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[Path], list[Path]]:
    np.save(tmp_path / "u.npy", np.random.default_rng(0).normal(size=(33, 25)))
    np.save(tmp_path / "t.npy", np.array(0.5))
    return [tmp_path / "u.npy", tmp_path / "t.npy"], [tmp_path / f"{name}_after.npy" for name in "ute"]


def on_ranks(ranks: int, job: Any, files: Any, options: Options) -> dict[str, Any]:
    def rank(control: Any) -> Any:
        return run(job, *files, {}, options, world=open_world("cpu", control=control))

    record: dict[str, Any] = run_ranks(ranks, rank)[0]
    return record


def stepped(steps: int, files: Any) -> list[Any]:
    u, t = (np.load(path) for path in files[0])
    for _ in range(steps):
        u, t, energy = heat.function(u, t)
    return [u, t, energy]


@pytest.mark.parametrize("fuse", ["auto", "require"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("steps", [None, 7])
def test_the_bits_do_not_depend_on_the_ranks(files: Any, ranks: int, steps: int | None, fuse: Any) -> None:
    options = Options(verify="full", fuse=fuse, steps=StepOptions(steps=steps))
    record = on_ranks(ranks, heat, files, options)
    found, wanted = [np.load(path) for path in files[1]], stepped(steps or 1, files)
    assert found[0].tobytes() == wanted[0].tobytes()  # a maximum is exact
    assert (found[1].shape, found[1].tobytes()) == ((), np.asarray(wanted[1]).tobytes())
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-12)
    assert record["verify"]["against"] == verification.AGAINST
    assert "reduce" in record["phases"]
    assert (record["fused"]["compiler"] is not None) == (fuse == "require")


def test_a_value_may_be_the_first_input(tmp_path: Path, files: Any) -> None:
    (u, t), _ = files
    on_ranks(2, normalised, ([t, u], [tmp_path / "out.npy"]), Options(verify="full", grid="1x2"))
    whole = np.load(u)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), whole / (np.linalg.norm(whole) + 0.5))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_is_resumed_from_its_checkpoint(
    files: Any, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshrun.runner.steps.program_steps import ProgramStepper

    steps = StepOptions(steps=9, checkpoint=SaveInterval(steps=3))
    taken = ProgramStepper._take_step

    def fail(self: Any) -> None:
        if self.done == 7:
            raise RunError("the power is off", everywhere=True)
        taken(self)

    monkeypatch.setattr(ProgramStepper, "_take_step", fail)
    with pytest.raises(RunError, match="power"):
        on_ranks(ranks, heat, files, Options(steps=steps))
    saved = next(files[1][0].parent.glob("*.checkpoint")) / "step-6"
    assert np.load(saved / "t.npy").tobytes() == np.asarray(stepped(6, files)[1]).tobytes()
    monkeypatch.undo()
    on_ranks(ranks, heat, files, Options(steps=steps, stream=StreamOptions(resume=True)))
    assert np.load(files[1][0]).tobytes() == stepped(9, files)[0].tobytes()
    assert np.load(files[1][1]).tobytes() == np.asarray(stepped(9, files)[1]).tobytes()


def test_verification_allows_what_float32_sums_round(tmp_path: Path) -> None:
    """Results of other dtypes have the rounding of the sums that they are computed of."""

    @distribute(outputs=("u", "psi"))
    def drifted(u, psi, k):
        return u - 0.25 * k.mean(), psi / np.linalg.norm(psi) + 1j * k.sum() / k.size

    rng = np.random.default_rng(3)
    k = np.ones((33, 25), np.float32)
    k[0, 0] = 2.0**24  # from here on, every second whole number is a float32
    assert k.sum() != np.float32(k.sum(dtype=float))
    arrays = [rng.random((33, 25)), rng.random((33, 25)) + 1j, k]
    inputs = [tmp_path / f"{number}.npy" for number in range(3)]
    for path, one in zip(inputs, arrays, strict=True):
        np.save(path, one)
    outputs = [tmp_path / "u.npy", tmp_path / "psi.npy"]
    on_ranks(2, drifted, (inputs, outputs), Options(verify="full"))
    wanted = drifted.function(*arrays)
    for path, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(np.load(path), want, rtol=1e-5)


def test_arrays_between_stages(files: Any, tmp_path: Path) -> None:
    @distribute
    def advected(u, *, dt: float = 0.1):
        """Runge-Kutta, whose third stage reads what the second one has written."""

        def slope(w):
            change = np.zeros_like(w)
            change[1:-1, 1:-1] = w[1:-1, 2:] - w[1:-1, :-2] + 0.5 * (w[2:, 1:-1] - w[:-2, 1:-1])
            return change

        first = slope(u)
        second = slope(u + dt / 2 * first)
        third = slope(u + dt / 2 * second)
        u += dt / 6 * (first + 2 * second + 2 * third + slope(u + dt * third))
        return u

    steps = StepOptions(steps=4)
    record = on_ranks(
        3, advected, ([files[0][0]], [tmp_path / "out.npy"]), Options(verify="full", steps=steps)
    )
    assert record["steps"]["exchanges"] > 4


def test_observers_see_the_fields(files: Any, tmp_path: Path) -> None:
    steps = StepOptions(steps=50, frames=str(tmp_path / "film.npy"), every=2, until=0.2, check_finite=1)
    record = on_ranks(2, heat, files, Options(steps=steps))
    film, done = np.load(tmp_path / "film.npy"), record["steps"]["steps"]
    assert record["steps"]["until"]["reached"]
    assert film[1].tobytes() == stepped(2, files)[0].tobytes()
    assert len(film) == done // 2 + 1


def test_values_that_are_not_finite_end_the_run(files: Any) -> None:
    np.save(files[0][1], np.array(np.nan))
    with pytest.raises(RunError, match="t is not finite"):
        on_ranks(2, heat, files, Options(steps=StepOptions(steps=2, check_finite=1)))


def test_iterate_and_call(files: Any) -> None:
    u, t = (np.load(path) for path in files[0])
    found = list(heat.iterate(u, t, steps=4, every=2))
    for count, (field, time, energy) in zip((2, 4), found, strict=True):
        wanted = stepped(count, files)
        assert field.tobytes() == wanted[0].tobytes()
        assert time == wanted[1]
        np.testing.assert_allclose(energy, wanted[2])
    assert heat(u.copy(), t.copy())[1] == stepped(1, files)[1]


def test_a_wrong_result_is_found(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrun.runner.programs.execute import ProgramRun

    reduce = ProgramRun._reduce

    def wrong(self: Any, number: int, stage: Any) -> None:
        reduce(self, number, stage)
        if stage.value is not None:
            self.values.views[stage.value][...] *= 1.001

    monkeypatch.setattr(ProgramRun, "_reduce", wrong)
    with pytest.raises(RunError, match="expected"):
        on_ranks(2, heat, files, Options(verify="full"))


def test_an_empty_selection_is_numpys_error(files: Any) -> None:
    @distribute
    def cut(u):
        return u - u[u > 1e9].max()

    with pytest.raises(RunError, match="picks none"):
        on_ranks(2, cut, ([files[0][0]], [files[1][0]]), Options())


# As text: pytest has its own assert statements in this file.
ONCE = """
def f(u):
    high = u.max()
    assert high > 0 and high < LIMIT, "too high"
    return u / high
"""
IN_A_LOOP = """
def f(u):
    rest = u.max()
    while rest > 0.5:
        u = u / 2
        rest = u.max()
        assert rest < LIMIT / 4, f"rest is {rest:.3f}"
    return u
"""


@pytest.mark.parametrize(("text", "line", "says"), [(ONCE, 4, ": too high"), (IN_A_LOOP, 7, "$")])
def test_an_assertion_of_a_value_fails_with_its_line(text: str, line: int, says: str, files: Any) -> None:
    given = [files[0][0]], [files[1][0]]
    on_ranks(2, distribute(compiled(text, LIMIT=9)), given, Options())
    with pytest.raises(RunError, match=f"line {line}: job f fails an assertion{says}"):
        on_ranks(2, distribute(compiled(text, LIMIT=1)), given, Options())


RAISED = """
def f(u):
    if u.max() >= LIMIT:
        raise ValueError(ARGUMENT)
    return u / 2
"""


@pytest.mark.parametrize(("argument", "says"), [("'too high'", ": too high"), ("u.max()", "$"), ("", "$")])
def test_an_error_that_a_value_decides_fails_with_its_line(argument: str, says: str, files: Any) -> None:
    given, text = ([files[0][0]], [files[1][0]]), RAISED.replace("ARGUMENT", argument)
    on_ranks(2, distribute(compiled(text, LIMIT=1e9)), given, Options())
    with pytest.raises(RunError, match=f"line 4: job f raises ValueError{says}"):
        on_ranks(2, distribute(compiled(text, LIMIT=-1e9)), given, Options())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(stream=StreamOptions(chunk_bytes=4096)), "chunk_bytes|chunk-bytes"),
        (
            Options(steps=StepOptions(steps=3), stream=StreamOptions(chunk_bytes=4096)),
            "all cells must be in memory",
        ),
        (Options(steps=StepOptions(steps=3, copies="one")), "copies"),
        (Options(overlap=True), "overlap"),
    ],
)
def test_what_does_not_apply_is_refused(files: Any, options: Options, says: str) -> None:
    with pytest.raises(UserError, match=says):
        on_ranks(1, heat, files, options)
