"""Functions with a `while` on a value whose ranks are delayed, killed, or have a NaN: one path on every rank.

`meshrun -n N run ... --steps` as a user runs it, under whichever MPI this environment has.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import nightly
from streamed import Site, needs_mpi, site_at
from test_restart import GO_ON, again, killed
from test_steps import KEPT, steps_kept

ROWS, COLUMNS, STEPS, EVERY = 36, 20, 12, 5
FILES = ["u.npy", "count.npy", "out.npy", "counted.npy"]
RUN = ["run", "job.py:relaxed", *FILES, "--steps", str(STEPS), "--json", "record.json"]
RUN += ["--checkpoint", str(EVERY)]

pytestmark = needs_mpi


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        shutil.copy(Path(__file__).with_name("dying_program.py"), made.work / "job.py")
        np.save(made.work / "u.npy", start())
        np.save(made.work / "count.npy", np.array(1))
        yield made


def start() -> Any:
    return np.random.default_rng(5).random((ROWS, COLUMNS))


def plain(nan: tuple[int, int, int] | None = None) -> tuple[Any, int, int]:
    """Return the field, the number that depends on each step's sweeps, and all sweeps, by NumPy.

    nan: the step, the iteration after which there is one, and its row.
    """
    u, count, total = start(), 1, 0
    for step in range(STEPS):
        change, sweeps = np.inf, 0
        while change > 0.03 and sweeps < 30:
            before = u.copy()
            u[1:-1] = (before[2:] + 2 * before[1:-1] + before[:-2]) / 4
            change = np.max(np.abs(u - before))
            if nan and nan[:2] == (step, sweeps):
                u[nan[2], 0] = np.nan
            sweeps += 1
        u = 4 * u * (1 - np.roll(u, 1, 1))
        u, count = u - np.floor(u), count * 31 % 1000003 + sweeps
        total += sweeps
    return u, count, total


def as_expected(site: Site, wanted: tuple[Any, int, int]) -> None:
    field, count, _ = wanted
    np.testing.assert_array_equal(np.load(site.work / "out.npy"), field)
    assert np.load(site.work / "counted.npy") == count
    assert not (site.work / "out.npy.checkpoint").exists()


def test_the_steps_take_different_numbers_of_sweeps() -> None:
    """A rank that took one sweep more or less than the others would leave another number."""
    _, _, total = plain()
    assert STEPS * 2 < total < STEPS * 30
    assert plain(nan=(6, 1, 18))[1:] != plain()[1:]


@pytest.mark.parametrize(
    ("ranks", "stage"),
    [
        (3, "sleep,1,6,1"),
        nightly(2, "sleep,0,0,0"),
        nightly(3, "sleep,2,11,0"),
        nightly(5, "sleep,4,6,1"),
    ],
)
def test_delays_and_a_slow_rank_change_nothing(site: Site, ranks: int, stage: str) -> None:
    wanted = plain()
    record = site.finish(["-n", str(ranks), *RUN], STAGE=stage, DELAYS="1")
    as_expected(site, wanted)
    (loop,) = record["loops"]
    assert loop["iterations"] == wanted[2]


@pytest.mark.parametrize(
    ("ranks", "victim", "step", "iteration"),
    [(2, 1, 6, 1), nightly(3, 0, 6, 1), nightly(3, 2, 0, 0), nightly(3, 1, 11, 1)],
)
def test_a_nan_on_one_rank_ends_the_loop_on_every_rank(
    site: Site, ranks: int, victim: int, step: int, iteration: int
) -> None:
    first_row = victim * ROWS // ranks
    wanted = plain(nan=(step, iteration, first_row))
    assert np.isnan(wanted[0]).any()
    status, lines = site.run(["-n", str(ranks), *RUN], STAGE=f"nan,{victim},{step},{iteration}", DELAYS="1")
    assert status == 0, lines
    (warning,) = (line for line in lines if "NaN" in line)
    line = 1 + (site.work / "job.py").read_text().splitlines().index(
        "    while change > 0.03 and sweeps < 30:"
    )
    assert f"the condition of the loop in line {line} compares a NaN in step" in warning
    as_expected(site, wanted)
    (loop,) = json.loads((site.work / "record.json").read_text())["loops"]
    assert loop["iterations"] == wanted[2]


def test_a_rank_that_is_killed_at_a_condition_is_left_out(site: Site) -> None:
    """Rank 1 dies in the loop of step 8. The other one goes on from the checkpoint after step 5."""
    status, lines = site.run(["-n", "2", *GO_ON, *RUN], STAGE="die,1,7,1", DELAYS="1")
    assert status == 0, lines
    assert killed(lines[0], 1)
    assert lines[1] == again("1 rank", "continuing with what is complete", 1)
    record = json.loads((site.work / "record.json").read_text())
    assert (record["ranks"], record["steps"]["first"]) == (1, EVERY)
    as_expected(site, plain())


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", ["0,0", "5,0", "7,1"])
def test_a_killed_rank_ends_all_and_keeps_the_checkpoint(
    site: Site, ranks: int, victim: int, moment: str
) -> None:
    status, lines = site.run(["-n", str(ranks), *RUN], STAGE=f"die,{victim},{moment}", DELAYS="1")
    assert status != 0
    assert killed(lines[0], victim)
    kept = [] if moment == "0,0" else [EVERY]
    assert steps_kept(site.work) == kept
    assert (KEPT in lines) == bool(kept)
    record = site.finish(["-n", "3", *RUN, "--resume"])
    assert record["steps"]["first"] == (kept or [0])[-1]
    as_expected(site, plain())
