"""What is read of the ranks of a host, and that it names a slow one."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshrun.runner.processes import process_stat
from meshrun.runner.recorder import ring
from meshrun.runner.recorder.ring import WAIT, Recorder
from meshrun.runner.world.stuck.monitor import HostMonitor
from meshrun.runner.world.stuck.monitor_process import Lead
from meshrun.runner.world.watch import readings, watcher
from meshrun.runner.world.watch.judge import LatePart, RankPart
from meshrun.runner.world.watch.readings import HostReadings, RankCounts
from meshrun.runner.world.watch.watcher import Watcher

ABOUT = {"run": "abc", "rank": 0, "size": 2, "host": "n1", "device": "CPU", "command": "run edges"}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(ring.file_of("abc", 0, tmp_path), ABOUT)
    yield made
    made.close()


def test_steps_waits_and_files_are_read(recorder: Recorder, tmp_path: Path) -> None:
    group = recorder.group("world", [0, 1])
    for _ in range(3):
        step = recorder.enter(recorder.name("step"))
        wait = recorder.enter(recorder.name(WAIT), 0, group)
        time.sleep(0.01)
        recorder.leave(wait)
        recorder.leave(step, 4)
    write = recorder.enter(recorder.name("write"))
    time.sleep(0.02)
    recorder.leave(write)
    began = time.monotonic()
    counts = HostReadings("abc", folder=tmp_path).read()[0]
    assert counts.steps == 12
    assert 0.03 <= counts.waited < counts.at
    assert 0.02 <= counts.files < counts.at
    assert counts.at == pytest.approx(began, abs=1.0)
    assert counts.clock == counts.lost["shared"] == 0.0


def test_what_ranks_do_together_counts_for_a_program_without_steps(
    recorder: Recorder, tmp_path: Path
) -> None:
    group = recorder.group("world", [0, 1])
    for sequence in range(1, 6):
        recorder.leave(recorder.enter(recorder.name("all_reduce"), 8, group, sequence))
    assert HostReadings("abc", folder=tmp_path).read()[0].steps == 5


def test_a_stopped_process_is_counted(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        started = process_stat(child.pid)
        assert started is not None
        about = {**ABOUT, "pid": child.pid, "start": started.start}
        made = Recorder(ring.file_of("abc", 0, tmp_path), about)
        ranks = HostReadings("abc", folder=tmp_path)
        assert ranks.read()[0].lost["stopped"] == 0.0
        ranks.poll()
        child.send_signal(signal.SIGSTOP)
        for _ in range(5):
            time.sleep(0.02)
            ranks.poll()
        stopped = ranks.read()[0].lost["stopped"]
        child.send_signal(signal.SIGCONT)
        time.sleep(0.05)
        ranks.poll()
        time.sleep(0.05)
        ranks.poll()
        assert stopped >= 0.06
        assert ranks.read()[0].lost["stopped"] == stopped
        made.close()
    finally:
        child.kill()
        child.wait()


def test_the_kernels_counters_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "schedstat").write_text("5000000000 2500000000 99\n")
    fields = ["S", *map(str, range(4, 53))]  # from the state on, by their numbers in proc_pid_stat(5)
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) c) {' '.join(fields)}\n")
    assert readings.queued_seconds(7, tmp_path) == 2.5
    assert readings.major_faults(7, tmp_path) == 12
    assert readings.queued_seconds(8, tmp_path) == readings.major_faults(8, tmp_path) == 0


@pytest.mark.parametrize(
    ("used", "share"),
    [({5: 40, 6: 30, 7: 20}, 0.5), ({5: 40}, 0.0), ({6: 90}, 0.0), ({}, 0.0), ({5: 1, 6: 80, 7: 70}, 1.0)],
)
def test_other_processes_count_if_nvml_knows_this_one(used: dict[int, int], share: float) -> None:
    samples = [SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in used.items()]
    nvml = SimpleNamespace(NVMLError=RuntimeError, nvmlDeviceGetProcessUtilization=lambda *_: samples)
    assert readings.others_share(nvml, None, 5) == pytest.approx(share)


def test_nvml_without_counts_of_processes_shows_no_others() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    nvml = SimpleNamespace(NVMLError=RuntimeError, nvmlDeviceGetProcessUtilization=fail)
    assert readings.others_share(nvml, None, 5) == 0.0


def counts(at: float, *, late: bool) -> dict[int, RankCounts]:
    """Return what two ranks have done until `at`: 20 steps a second; after 40 s if `late`, 12, rank 1's."""
    slow = max(at - 40, 0.0) if late else 0.0
    steps = int(20 * (at - slow) + 12 * slow)
    waits = (0.1 * (at - slow) + 0.45 * slow, 0.1 * at)
    return {rank: RankCounts(at, steps, waits[rank], 0.0, {"queued": 0.4 * slow * rank}) for rank in range(2)}


@pytest.mark.parametrize("late", [True, False])
def test_counts_of_several_hosts_name_the_slow_rank(late: bool) -> None:
    watched = Watcher([RankPart(0, "n1"), RankPart(1, "n2")])
    found = []
    for at in range(90):
        for rank, one in counts(at, late=late).items():
            found += watched.add({rank: one}, at)
    assert [(one.part, one.kind) for one in found] == [("rank 1 of host n2", "load")] * late


def test_what_another_host_sends_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages: list[tuple[int, dict[str, object]]] = []
    hub = SimpleNamespace(poll=lambda _: [messages.pop()] if messages else [], connections={})
    setting = {"seconds": float("inf"), "watch": [["n1", ""], ["n2", ""]]}
    lead = Lead(setting, HostMonitor("abc", tmp_path), hub)  # type: ignore[arg-type]
    told: list[LatePart] = []
    monkeypatch.setattr(watcher, "report", told.append)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    for at in range(90):
        clock.now = at
        for rank, one in counts(at, late=True).items():
            sent = json.loads(json.dumps({"watch": {rank: dataclasses.asdict(one)}}))
            messages.append((rank, sent))
            assert not lead.look()
    assert [one.ranks for one in told] == [(1,)]


def test_a_slow_part_is_told_and_sent_to_rank_0(capfd: pytest.CaptureFixture[str]) -> None:
    since = time.monotonic() - 20
    finding = LatePart("rank", "rank 1 of host n2", (1,), "load", since, 0.6, 0.99, "it is busy")
    watcher.report(finding)
    out, err = capfd.readouterr()
    said = "rank 1 of host n2 makes each step 60% longer: load, it is busy (confidence 0.99)"
    assert err == f"meshrun: slow: {said}, since 20 s ago\n"
    sent = json.loads(out)["slow"]
    assert sent["part"] == "rank 1 of host n2"
    assert sent["since"] == pytest.approx(time.time() - 20, abs=5)


def test_the_last_operations_are_enough_for_the_totals(recorder: Recorder, tmp_path: Path) -> None:
    for _ in range(ring.RECORDS + 10):
        recorder.leave(recorder.enter(recorder.name("kernel")), 1)
    whole, part = ring.read(recorder.path), ring.read(recorder.path, last=3)
    assert whole is not None
    assert part is not None
    assert part.operations[-1].number == ring.RECORDS + 10
    assert [one.number for one in part.operations] == [one.number for one in whole.operations[-3:]]
    assert part.totals["kernel"].entered == whole.totals["kernel"].entered
