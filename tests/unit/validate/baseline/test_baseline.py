"""A run is compared only with earlier healthy runs of its fleet."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.jobs.measure.outliers import run_deviation as deviation
from meshrun.jobs.validate.baseline import json as baseline_json
from meshrun.jobs.validate.baseline.baseline_run import KEPT, Figure
from meshrun.jobs.validate.baseline.compare import check, check_saving, compare, drifted, save
from meshrun.jobs.validate.probe.api import WrongData
from meshrun.jobs.validate.report.model import Member, Report
from meshrun.jobs.validate.verdict import Verdict
from meshrun.runner.errors import UserError

OK = Verdict("ok", (), (), ())
ENVIRONMENT = {
    "meshrun": "1.0",
    "driver": "580.82",
    "nccl": "2.28.3",
    "mpi": "Open MPI 5",
    "settings": ["A=1"],
}
SUFFIXES = [".json", ".sqlite", ".db"]


def report(hosts: Mapping[str, int], device: str = "NVIDIA H200", **changes: Any) -> Report:
    spots = [(host, gpu) for host, count in hosts.items() for gpu in range(count)]
    members = tuple(Member(rank, host, gpu, device) for rank, (host, gpu) in enumerate(spots))
    whole = Report(OK, members, "2026-01-02T03:04:05Z", 12.0, "meshrun validate", dict(ENVIRONMENT))
    return replace(whole, **changes)


FLEET = report({"c1": 2, "c10": 2})


def rates(
    base: float = 400e9, slow: str = "", factor: float = 1.0, of: Report = FLEET
) -> dict[Figure, float]:
    parts = ["", *(f"host {one.host}, GPU {one.gpu}" for one in of.members)]
    return {("pairs", "flows", part): base * (factor if part == slow else 1.0) for part in parts}


def saved(path: Path, runs: int, of: Report = FLEET) -> None:
    for number in range(runs):
        assert save(path, of, rates(400e9 * (1 + 0.001 * (number % 3)), of=of)).startswith("saved as run ")


@pytest.fixture(params=SUFFIXES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"a base#line?{request.param}"  # characters that are special in a URI


# --- what drifts


def test_a_part_that_became_slow_drifts_and_nothing_else(path: Path) -> None:
    saved(path, 5)
    (drift,), changed = compare(path, FLEET, rates(slow="host c10, GPU 1", factor=0.8))
    assert (drift.rung, drift.what, drift.part) == ("pairs", "flows", "host c10, GPU 1")
    assert (drift.runs, drift.rate) == (5, 320e9)
    assert drift.usual == pytest.approx(400e9, rel=0.002)
    assert drift.score == pytest.approx(-20, abs=0.2)  # 1 % is the least deviation
    assert changed == ()


def test_the_slowest_comes_first_and_the_faster_last(path: Path) -> None:
    saved(path, 4)
    now = rates() | {("pairs", "flows", "host c1, GPU 0"): 300e9, ("pairs", "flows", "host c1, GPU 1"): 500e9}
    now["pairs", "flows", ""] = 200e9
    drifts, _ = compare(path, FLEET, now)
    assert [one.rate for one in drifts] == [200e9, 300e9, 500e9]
    assert drifts[-1].score > 4


@pytest.mark.parametrize(("factor", "found"), [(0.951, 0), (0.945, 1), (1.049, 0), (1.06, 1)])
def test_five_percent_and_four_deviations_are_needed(path: Path, factor: float, found: int) -> None:
    for _ in range(4):
        save(path, FLEET, rates())
    assert len(compare(path, FLEET, rates(400e9 * factor))[0]) == 5 * found


def test_what_varies_much_must_differ_by_more(path: Path) -> None:
    for base in (360e9, 380e9, 400e9, 420e9, 440e9):  # 1.4826 MAD = 7.4 %
        save(path, FLEET, rates(base))
    assert compare(path, FLEET, rates(400e9 * 0.8))[0] == ()
    assert len(compare(path, FLEET, rates(400e9 * 0.5))[0]) == 5


def test_few_runs_give_no_score_and_say_so(path: Path) -> None:
    saved(path, 2)
    drifts, changed = compare(path, FLEET, rates(slow="host c1, GPU 0", factor=0.89))
    assert [one.part for one in drifts] == ["host c1, GPU 0"]
    assert math.isnan(drifts[0].score)
    assert compare(path, FLEET, rates(slow="host c1, GPU 0", factor=0.92))[0] == ()
    assert any("only 2 earlier runs" in note and "without a score" in note for note in changed)


@given(st.lists(st.floats(1e6, 1e13), min_size=1, max_size=60), st.floats(0.3, 3.0))
def test_drifts_do_not_depend_on_units_or_order(earlier: list[float], factor: float) -> None:
    figure: Figure = ("gpu", "memory", "")
    now = factor * sorted(earlier)[len(earlier) // 2]
    one = drifted({figure: now}, {figure: earlier})
    other = drifted({figure: 1024 * now}, {figure: [1024 * rate for rate in reversed(earlier)]})
    assert [each.usual for each in one] == pytest.approx([each.usual / 1024 for each in other])
    assert [each.score for each in one] == pytest.approx([each.score for each in other], nan_ok=True)


@pytest.mark.parametrize("runs", [3, 5, 10, 50])
@pytest.mark.parametrize("parts", [8, 2048])
def test_healthy_runs_do_not_drift_however_many_parts_there_are(runs: int, parts: int) -> None:
    random = np.random.default_rng(runs)
    figures: list[Figure] = [("pairs", "flows", f"host c{number}, GPU 0") for number in range(parts)]
    alarms, found, turns = 0, 0, 200 if parts < 100 else 3
    for _ in range(turns):
        rates = 400e9 * np.exp(0.02 * random.standard_normal((parts, runs + 1)))
        earlier = {figure: row[:runs].tolist() for figure, row in zip(figures, rates, strict=True)}
        now = dict(zip(figures, rates[:, runs].tolist(), strict=True))
        alarms += bool(drifted(now, earlier))
        now[figures[1]] *= 0.7
        found += any(one.part == figures[1][2] for one in drifted(now, earlier))
    assert alarms <= (0.1 if runs == 3 else 0.02) * turns  # three runs are a poor estimate of the noise
    assert found >= 0.98 * turns


@pytest.mark.parametrize("runs", [3, 4, 5, 9, 10, 30])
def test_the_deviation_of_few_runs_is_not_too_small(runs: int) -> None:
    random = np.random.default_rng(7)
    found = [deviation((1 + 0.01 * random.standard_normal(runs)).tolist()) for _ in range(4000)]
    assert np.mean(found) == pytest.approx(0.01 * math.sqrt(1 + math.pi / 2 / runs), rel=0.05)


def test_one_bad_run_in_the_baseline_moves_nothing(path: Path) -> None:
    saved(path, 6)
    save(path, FLEET, rates(100e9))
    assert compare(path, FLEET, rates())[0] == ()


# --- what is kept


def test_runs_are_numbered(path: Path) -> None:
    lines = [save(path, FLEET, rates()) for _ in range(3)]
    assert [line.split()[3] for line in lines] == ["1", "2", "3"]
    assert save(path, report({"x1": 8}), rates()).startswith("saved as run 1 of this fleet")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": Verdict("warning", (), (), ())}, "warning"),
        ({"verdict": Verdict("unknown", (), (), ("gpu: lost",))}, "gpu: lost"),
        ({"ended": "rank 3 was killed"}, "rank 3 was killed"),
        ({"wrong": (WrongData("flows", 1, 0, 8, 0, 1, "0x1", "0x0"),)}, "data was wrong"),
    ],
)
def test_only_healthy_runs_are_saved(path: Path, changes: dict[str, Any], why: str) -> None:
    line = save(path, replace(FLEET, **changes), rates())
    assert line.startswith("not saved")
    assert why in line
    assert not path.exists()


def test_nothing_measured_is_not_saved(path: Path) -> None:
    assert "nothing was measured" in save(path, FLEET, {("gpu", "memory", ""): math.nan})


def test_the_last_runs_of_each_environment_are_kept(tmp_path: Path) -> None:
    path, other = tmp_path / "b.sqlite", report({"x1": 1})
    new = replace(FLEET, environment=ENVIRONMENT | {"driver": "580.159"})
    save(path, other, rates(of=other))
    for _ in range(KEPT + 3):
        save(path, FLEET, rates())
    save(path, new, rates())
    with closing(sqlite3.connect(path)) as base:
        assert base.execute("SELECT count(*), count(DISTINCT id) FROM runs").fetchone() == (KEPT + 2,) * 2
        assert base.execute("SELECT count(DISTINCT run) FROM figures").fetchone()[0] == KEPT + 2
        numbers = [row[0] for row in base.execute("SELECT number FROM runs ORDER BY id")]
        assert numbers == [1, *range(4, KEPT + 5)]


def test_json_keeps_as_many(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    for _ in range(KEPT + 2):
        save(path, FLEET, rates())
    assert [run.number for run in baseline_json.read(path)] == list(range(3, KEPT + 3))


RATES = st.dictionaries(
    st.tuples(
        st.sampled_from(["gpu", "host pairs", "all"]),
        st.sampled_from(["memory", "flows", "ring"]),
        st.sampled_from(["", "host c1", "host c1, GPU 0", "host c10, GPU 1"]),
    ),
    st.floats(1e3, 1e13),
    min_size=1,
)


@given(st.lists(RATES, min_size=1, max_size=4), RATES)
def test_both_formats_give_the_same_comparison(
    earlier: list[dict[Figure, float]], now: dict[Figure, float]
) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".json", ".sqlite"):
            path = Path(folder, f"b{suffix}")
            for figures in earlier:
                save(path, FLEET, figures)
            drifts, changed = compare(path, FLEET, now)
            # NaN is not NaN
            found.append(
                (
                    [
                        replace(one, score=round(one.score, 9) if one.score == one.score else 0)
                        for one in drifts
                    ],
                    changed,
                )
            )
    assert found[0] == found[1]


def test_rates_come_back_to_the_last_bit(path: Path) -> None:
    exact = {("gpu", "memory", ""): 4123456789012.3457}
    for _ in range(3):
        save(path, FLEET, exact)
    (drift,), _ = compare(path, FLEET, {("gpu", "memory", ""): 1e12})
    assert drift.usual == exact["gpu", "memory", ""]


def test_json_can_be_read_and_compared_by_line(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    saved(path, 1)
    before = path.read_text().splitlines()
    saved(path, 1)
    after = path.read_text().splitlines()
    assert after[: len(before) - 3] == before[:-3]  # a run is added below the others
    assert json.loads(path.read_text())["runs"][1]["figures"]["pairs"]["flows"]["host c1, GPU 0"] == 400e9


# --- what changed


def test_a_driver_that_changed_is_named_with_the_last_run_of_the_old_one(path: Path) -> None:
    saved(path, 4)
    new = replace(FLEET, environment=ENVIRONMENT | {"driver": "580.159", "firmware": "28.43"})
    drifts, changed = compare(path, new, rates())
    assert drifts == ()
    assert changed == ("driver 580.82 -> 580.159 since run 4", "firmware not known -> 28.43 since run 4")
    save(path, new, rates())
    assert compare(path, new, rates(300e9))[0][0].runs == 5  # the others still count
    assert compare(path, new, rates())[1][0] == "driver 580.82 -> 580.159 since run 4"


def test_a_fingerprint_of_many_hosts_is_one_text(path: Path) -> None:
    save(path, replace(FLEET, environment=ENVIRONMENT | {"driver": ["580.9", "580.82", "580.82"]}), rates())
    assert "driver 580.82, 580.9 -> 580.82 since run 1" in compare(path, FLEET, rates())[1]


def test_other_sizes_are_not_compared_and_said(path: Path) -> None:
    sized = replace(FLEET, environment=ENVIRONMENT | {"bytes": {"pairs flows": 1 << 28}})
    for _ in range(3):
        save(path, sized, rates())
    other = replace(FLEET, environment=ENVIRONMENT | {"bytes": {"pairs flows": 1 << 24}})
    assert compare(path, other, rates(100e9)) == (
        (),
        ("pairs flows: not compared (earlier runs were of other sizes)",),
    )
    assert len(compare(path, sized, rates(100e9))[0]) == 5


def test_what_was_not_measured_is_said(path: Path) -> None:
    saved(path, 3)
    drifts, changed = compare(path, FLEET, {("gpu", "memory", ""): 1e12, ("pairs", "flows", ""): math.nan})
    assert drifts == ()
    assert changed == (
        "gpu memory: not compared (no earlier run has them)",
        "pairs flows: in earlier runs, not measured in this one",
    )


# --- which fleet


def test_some_of_the_hosts_are_compared_part_by_part(path: Path) -> None:
    for _ in range(4):
        save(path, FLEET, rates() | {("rails", "ring", "rail 0"): 40e9})
    part = report({"c1": 2})
    now = rates(slow="host c1, GPU 1", factor=0.7, of=part) | {("pairs", "flows", ""): 1e9}
    now["rails", "ring", "rail 0"] = 1e9
    drifts, changed = compare(path, part, now)
    assert [one.part for one in drifts] == ["host c1, GPU 1"]  # the median of the fleet is of other hosts
    assert changed == (
        "the baseline is of 2 hosts, 1 of them here: their parts are compared, "
        "rails and medians of the fleet are not",
    )
    save(path, part, rates(of=part))  # from now on it is a fleet of its own
    assert any("only 1 earlier run," in note for note in compare(path, part, now)[1])


def refusal(path: Path, of: Report) -> str:
    before = path.read_bytes()
    with pytest.raises(UserError) as error:
        compare(path, of, rates(of=of))
    with pytest.raises(UserError) as early:
        check(path, of.members, of.simulated)
    assert str(early.value) == str(error.value)
    assert path.read_bytes() == before
    return str(error.value)


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        (report({"x1": 2}), "no host in common; new: x1; missing: c1, c10"),
        (report({"c1": 2, "c2": 2}), "got new: c2; missing: c10"),
        (report({"c1": 2, "c10": 4}), "got c10 has 4 GPUs, not 2"),
        (report({"c1": 2, "c10": 2}, "NVIDIA H100"), "got NVIDIA H100, not NVIDIA H200"),
        (report({"c1": 2, "c10": 2}, simulated="hosts=2,gpus=2"), "got simulated, not NVIDIA H200"),
    ],
)
def test_another_fleet_is_refused_with_what_differs(path: Path, other: Report, differing: str) -> None:
    saved(path, 1)
    text = refusal(path, other)
    assert differing in text
    assert f"Try: --save-baseline {path}" in text
    save(path, other, rates(of=other))  # which is right
    assert compare(path, other, rates(of=other))[0] == ()
    assert compare(path, FLEET, rates())[0] == ()


def test_a_large_fleet_is_not_listed_whole(path: Path) -> None:
    saved(path, 1)
    text = refusal(path, report({f"n{number}": 1 for number in range(500)}))
    assert "... (500 in all)" in text
    assert len(text) < 600


# --- files that are no good


def test_no_file_and_no_run(path: Path) -> None:
    with pytest.raises(UserError, match=r"No such file or directory.*Try: --save-baseline"):
        compare(path, FLEET, rates())
    path.touch()
    assert "has no run yet" in refusal(path, FLEET)
    saved(path, 1)  # an empty file is valid


def test_a_folder_is_no_file(path: Path) -> None:
    path.mkdir()
    for call in (compare, save):
        with pytest.raises(UserError, match=r"cannot (read|write) the baseline"):
            call(path, FLEET, rates())


def test_the_name_says_the_format(tmp_path: Path) -> None:
    for call in (compare, save):
        with pytest.raises(UserError, match=r"got .*b\.yaml, expected \.json or \.sqlite or \.db"):
            call(tmp_path / "b.yaml", FLEET, rates())


def corrupted(path: Path) -> Iterator[bytes]:
    whole = path.read_bytes()
    yield from (whole[: len(whole) * eighth // 8] for eighth in range(1, 8))
    yield b"\0" * len(whole)
    yield b"\xff\xfe" + whole
    yield whole[: len(whole) // 2] + b"\0" * (len(whole) - len(whole) // 2)


def test_a_truncated_or_corrupt_file_is_refused_and_left_alone(path: Path) -> None:
    many = report({f"c{number}": 8 for number in range(60)})  # several pages
    saved(path, 3, many)
    for content in list(corrupted(path)):
        path.write_bytes(content)
        text = refusal(path, many)
        assert "is broken" in text or "another program" in text or "cannot read" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"runs": 3},
        {"runs": [{}]},
        {"runs": [[]]},
        {"runs": [{"number": 0}]},
        {"figures": {"gpu": {"memory": {"": 0}}}},
        {"figures": {"gpu": {"memory": {"": -1.0}}}},
        {"figures": {"gpu": {"memory": {"": "1e9"}}}},
        {"figures": {"gpu": {"memory": {"": math.nan}}}},
        {"figures": {"gpu": {"memory": {"": math.inf}}}},
        {"figures": {"gpu": {"memory": {"": 10**400}}}},
        {"number": 2**63 - 1},
        {"runs": [], "version": "1"},
        {"figures": {"gpu": {"memory": 7}}},
        {"figures": {"lift": {"memory": {"": 1.0}}}},
        {"hosts": {"c1": "2"}},
        {"hosts": ["c1"]},
        {"devices": "H200"},
        {"environment": {"driver": 580}},
        {"started": None},
    ],
)
def test_json_that_was_edited_wrongly_is_broken(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "b.json"
    saved(path, 1)
    found = json.loads(path.read_text())
    (found if "runs" in wrong else found["runs"][0]).update(wrong)
    path.write_text(json.dumps(found))
    assert "is broken" in refusal(path, FLEET)
    with pytest.raises(UserError, match="is broken"):
        save(path, FLEET, rates())


def test_files_of_other_programs_are_not_touched(tmp_path: Path) -> None:
    document, base = tmp_path / "b.json", tmp_path / "b.db"
    document.write_text('{"runs": []}')
    with closing(sqlite3.connect(base)) as other:
        other.execute("CREATE TABLE runs (id INTEGER)")
    for path in (document, base):
        before = path.read_bytes()
        assert "is a file of another program" in refusal(path, FLEET)
        with pytest.raises(UserError, match="is a file of another program"):
            save(path, FLEET, rates())
        assert path.read_bytes() == before


def test_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    document, base = tmp_path / "b.json", tmp_path / "b.db"
    for path in (document, base):
        saved(path, 1)
    document.write_text(document.read_text().replace('"version": 1', '"version": 2'))
    with closing(sqlite3.connect(base)) as newer:
        newer.execute("PRAGMA user_version = 2")
    for path in (document, base):
        assert "written by a newer meshrun: got version 2, expected version 1" in refusal(path, FLEET)
        with pytest.raises(UserError, match="newer meshrun"):
            save(path, FLEET, rates())


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that this process, no longer root, may read but not write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    root = os.geteuid() == 0
    yield folder
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_folder_that_cannot_be_written_is_read(nobody: Path, suffix: str) -> None:
    path = nobody / f"b{suffix}"
    saved(path, 3)
    path.chmod(0o444)
    nobody.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)
    assert len(compare(path, FLEET, rates(100e9))[0]) == 5
    for target in (path, nobody / f"new{suffix}"):
        with pytest.raises(UserError, match="cannot write the baseline"):
            save(target, FLEET, rates())
        with pytest.raises(UserError, match="cannot write the baseline"):
            check_saving(target)


def test_what_cannot_be_saved_is_refused_before(path: Path, tmp_path: Path) -> None:
    check_saving(path)
    assert not path.exists()
    saved(path, 1)
    check_saving(path)
    path.write_bytes(b"not a baseline")
    bad = (path, tmp_path / "none" / path.name, tmp_path / "b.yaml")
    for target in bad:
        with pytest.raises(UserError):
            check_saving(target)
        with pytest.raises(UserError):
            save(target, FLEET, rates())


def test_json_keeps_links_and_permissions(tmp_path: Path) -> None:
    path, link = tmp_path / "b.json", tmp_path / "link.json"
    saved(path, 1)
    path.chmod(0o664)
    link.symlink_to(path)
    saved(link, 1)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert len(baseline_json.read(path)) == 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b.json", "link.json"]


def test_json_stays_whole_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.json"
    saved(path, 2)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        save(path, FLEET, rates())
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["b.json"]


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(file: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(baseline_json.fcntl, "flock", unsupported)
    with pytest.raises(UserError, match=r"has no locks: .*Operation not supported.* Try: "):
        save(tmp_path / "b.json", FLEET, rates())


@pytest.mark.parametrize("suffix", [".json", ".db"])
def test_a_writer_that_never_ends_is_not_waited_for(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"b{suffix}"
    saved(path, 1)
    for module in ("json", "sqlite"):
        monkeypatch.setattr(f"meshrun.jobs.validate.baseline.{module}.TIMEOUT", 0.2)
    with open(path, "r+b") as held, closing(sqlite3.connect(path, isolation_level=None)) as base:
        if suffix == ".json":
            baseline_json.fcntl.flock(held, baseline_json.fcntl.LOCK_EX)
        else:
            base.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match=r"another run has been writing|database is locked"):
            save(path, FLEET, rates())


def full_disk(*_: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_database_that_cannot_be_filled_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("meshrun.jobs.validate.baseline.sqlite.insert", full_disk)
        with pytest.raises(UserError, match="disk is full"):
            save(tmp_path / "b.db", FLEET, rates())
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "b.db").touch()  # not ours
        with pytest.raises(UserError, match="disk is full"):
            save(tmp_path / "b.db", FLEET, rates())
        assert (tmp_path / "b.db").stat().st_size == 0
    saved(tmp_path / "b.db", 1)


SAVER = """
import sys
from pathlib import Path
from meshrun.jobs.validate.baseline.compare import save
from meshrun.jobs.validate.report.model import Member, Report
from meshrun.jobs.validate.verdict import Verdict
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
whole = Report(Verdict("ok", (), (), ()), (Member(0, "c1", 0, "H200"),), name, 1.0, "")
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    print(save(path, whole, {("gpu", "memory", ""): float(1 + number)}).split()[3], flush=True)
"""


@pytest.mark.parametrize("suffix", [".json", ".sqlite"])
def test_runs_that_save_at_the_same_time_lose_nothing(tmp_path: Path, suffix: str) -> None:
    path, writers, each = tmp_path / f"b{suffix}", 3, 8
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path), f"writer {number}", str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for number in range(writers)
    ]
    for saver in savers:
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
    for saver in savers:
        assert saver.stdin is not None
        saver.stdin.write("\n")
        saver.stdin.flush()
    numbers = sorted(int(word) for saver in savers for word in saver.communicate(timeout=60)[0].split())
    assert [saver.returncode for saver in savers] == [0] * writers
    assert numbers == list(range(1, writers * each + 1))
    one = report({"c1": 1}, "H200", environment={})
    (drift,), _ = compare(path, one, {("gpu", "memory", ""): 1000.0})
    assert drift.runs == writers * each
