"""`meshrun selftest` and `meshrun selftest --mutate` as they are, in this process."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from meshrun.launch.cli.main import main
from meshrun.runner.errors import RunError
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.run.execute import Options
from meshrun.runner.run.installation import selftest
from meshrun.runner.run.installation.mutations import MUTATIONS, Mutation
from meshrun.runner.run.installation.selftest import Trial
from meshrun.runner.system.launcher import RANK_ONLY, VARIABLES, Started

PROMISES = Path(__file__).parents[4] / "docs" / "explanations" / "promises.md"
NUMBERS = {"eighteen": 18, "nineteen": 19, "twenty": 20, "twenty-one": 21, "twenty-two": 22}
NAMED = {mutation.name: mutation for mutation in MUTATIONS}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, *names in (*VARIABLES, *RANK_ONLY):
        for name in names:
            monkeypatch.delenv(name, raising=False)


def test_every_broken_runner_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--mutate"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    caught = [line for line in lines if line.startswith("caught")]
    # What was found, and what should be there, of different values.
    for line in caught:
        got, expected = re.search(r"got (\S+), expected (\S+)", line).groups()
        assert got != expected, line
    documented = re.search(r"selftest --mutate` breaks the runner in ([\w-]+) ways", PROMISES.read_text())
    assert len(caught) == NUMBERS[documented[1]]
    assert lines[len(caught) :] == ["", f"Verification caught all {len(caught)} broken runners."]


@pytest.mark.parametrize("name", [one.name for one in MUTATIONS if one.kind == "steps"])
@pytest.mark.parametrize(
    ("boundary", "grid", "every", "overlap"),
    [
        ("reflect", "4x1", 1, False),
        ("wrap", "2x2", 2, False),
        ("constant", "4", 1, True),
        ("wrap", "4", 2, True),
    ],
)
def test_steps_that_go_wrong_are_noticed_however_halos_are_exchanged(
    tmp_path: Path, name: str, boundary: str, grid: str, every: int, overlap: bool
) -> None:
    steps = StepOptions(5, steps_per_exchange=every)
    options = Options(device="cpu", verify="full", boundary=boundary, grid=grid, overlap=overlap, steps=steps)
    trial = Trial("", selftest.stepping, (61, 43), "uint32", {}, options)
    selftest._run_simulated(trial, tmp_path)
    with NAMED[name].broken(), pytest.raises(RunError, match="verification failed"):
        selftest._run_simulated(trial, tmp_path)


def test_each_cell_of_a_step_has_its_own_weight() -> None:
    """An impulse in either field is multiplied by a number of its own for each neighbour and each result."""
    found = []
    for field in range(2):
        fields = [np.zeros((9, 9), np.uint32) for _ in range(2)]
        fields[field][4, 4] = 1
        for result in selftest.stepping.function(*fields, xp=np):
            found += [int(value) for value in result[result != 0]]
    assert len(set(found)) == len(found) == 2 * 2 * 4 * 4
    assert all(value % 2 for value in found)


def test_a_broken_runner_that_nobody_notices_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = Mutation("harmless", "nothing is broken", nullcontext)
    monkeypatch.setattr(selftest, "MUTATIONS", (NAMED["halo skipped"], harmless))
    assert main(["selftest", "--mutate"]) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0].startswith("caught  halo skipped")
    assert re.fullmatch(r"MISSED  harmless +nothing is broken +the wrong result was accepted", lines[1])
    assert lines[3] == "Verification is NOT to be trusted here: it missed 1 of 2 broken runners."


def test_a_sound_runner_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(device="cpu", started=Started(ranks=1)) == 0
    lines = capsys.readouterr().out.splitlines()
    alone, together = (
        [re.sub(r" \([\d.]+ s\)$", "", line) for line in lines if where in line]
        for where in ("1 rank, CPU", "4 simulated ranks, CPU")
    )
    assert len(alone) + len(together) == len(lines)
    assert all(line.startswith("ok    ") for line in lines)
    assert len(alone) == len(together) + 1, "one for the all-reduce"
    for boundary in ("reflect", "mirror", "nearest", "constant", "wrap"):
        for cut in ("rows", "rows and columns"):
            assert f"ok    4 simulated ranks, CPU: stencil, {boundary}, {cut} cut" in together
        for every in ("step", "2 steps"):
            assert (
                f"ok    4 simulated ranks, CPU: 3 steps, {boundary}, halos exchanged every {every}"
                in together
            )
    for name in ("laplacian", "convolve", "grayscale", "elementwise", "statistics"):
        assert any(f": {name}, " in line for line in together), name


def test_a_broken_runner_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with NAMED["unfinished kernel"].broken():
        assert selftest.main(device="cpu", started=Started(ranks=1)) == 1
    said = capsys.readouterr()
    failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]
    assert any("4 simulated ranks, CPU: stencil, reflect, rows cut" in line for line in failed)
    assert any("1 rank, CPU" in line for line in failed)
    assert said.err == f"meshrun: selftest: {len(failed)} check(s) failed\n"
