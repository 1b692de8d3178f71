"""`meshrun bench memory` as a user types it: words, refusals, exit statuses, the JSON file and the plot."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typed import typed

from meshrun import World
from meshrun.jobs.bench.lessons.cli import LESSONS
from meshrun.jobs.bench.lessons.run import LessonOptions
from meshrun.jobs.bench.lessons.run import run as run_lesson
from meshrun.jobs.measure import check
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.runner.comm.collectives.api import DATATYPES
from meshrun.runner.device.cpu import CpuBackend
from meshrun.runner.errors import UserError
from meshrun.runner.world.failure import FailureHandler
from meshrun.runner.world.world import single_rank_world

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `meshrun bench memory` on a CPU, in an empty folder, its output piped."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return typed("bench", "memory", *words)

    return command


def test_every_lesson_is_listed_and_has_help(run: Run) -> None:
    listed = run("--help")
    assert listed.returncode == 0
    for name, (summary, _) in LESSONS.items():
        assert f"  {name} " in listed.stdout
        assert summary.split(",")[0][:30] in listed.stdout
    helped = run("streams", "--help")
    assert helped.returncode == 0
    assert "--chunks" in helped.stdout
    assert "[default: 16" in helped.stdout


def test_a_lesson_on_a_cpu(run: Run) -> None:
    ended = run("transfer", "-b", "1K", "-e", "64K", "-n", "1", "--device", "cpu")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("# Copies inside the host's memory, ")
    assert [line.split()[0] for line in lines[4:8]] == ["1", "4", "16", "64"]
    assert "\x1b" not in ended.stdout


def test_json_and_plot_hold_what_was_shown(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("-e", "64K", "-n", "1", "--device", "cpu", "-J", "out.json", "--plot", "out.html")
    ended = run("coalescing", *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    kept = json.loads((tmp_path / "out.json").read_text())
    assert (kept["lesson"], kept["bytes"], kept["device"]["kind"]) == ("coalescing", 65536, "cpu")
    assert f"# {kept['title']}" in ended.stdout
    assert all(title.partition(" (")[0] in ended.stdout for title in kept["tables"][0]["titles"])
    assert kept["title"] in (tmp_path / "out.html").read_text()
    # A second run takes the next name, as nccl-tests does.
    assert run("coalescing", *words).returncode == 0
    assert json.loads((tmp_path / "out.json").read_text()) == kept
    assert len(list(tmp_path.glob("out.json*"))) == 2


def test_a_lesson_that_needs_gpus_fails_on_a_cpu(run: Run, tmp_path: Path) -> None:
    ended = run("streams", "--device", "cpu", "-J", "out.json")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1
    assert "bench memory streams needs a GPU, and this is a CPU" in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("transfer", "-b", "4K", "-e", "1K"), "no size to measure"),
        (("transfer", "-b", "0"), "no size to measure"),
        (("transfer", "-b", "many"), "many"),
        (("transfer", "-n", "0"), "-n"),
        (("transfer", "-c", "2"), "-c"),
        (("transfer", "--chunks", "2"), "chunks"),
        (("streams", "--chunks", "0"), "chunks"),
        (("coalescing", "-b", "4"), "-b"),
        (("transpose", "--dtype", "complex64"), "dtype"),
        (("nothing",), "nothing"),
        (("coalescing", "-e", "100"), "too small for strides"),
        (("transfer", "--plot", "p.xls"), "suffix"),
        (("transfer", "-J", "no/such/folder.json"), "no/such"),
    ],
)
def test_bad_words_end_with_nccl_tests_status(run: Run, words: tuple[str, ...], complaint: str) -> None:
    ended = run(*words, *(("--device", "cpu") if len(words) > 1 else ()))
    assert ended.returncode == 6
    assert ended.stdout == ""
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["transfer", "coalescing"])
def test_one_rank_lessons_refuse_several(on_ranks: Callable[..., list[Any]], name: str) -> None:
    def body(world: World) -> None:
        run_lesson(
            world, FailureHandler(), LessonOptions(name, 1, True, (64, 64), {}), SimpleNamespace(columns=0)
        )

    with pytest.raises(UserError, match=f"bench memory {name} measures one GPU") as refused:
        on_ranks(2, body)
    assert refused.value.everywhere
    assert str(refused.value).endswith(f"Try: meshrun bench memory {name}")


def test_wrong_data_fail_after_all_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = check.DataMismatch(3, 1, 0, 1, 0, DATATYPES["uint8"])
    monkeypatch.setattr(check, "verify", lambda *arguments: found)
    options = LessonOptions("transfer", 1, True, (64, 64), {}, str(tmp_path / "out.json"))
    cli_context = SimpleNamespace(columns=0)
    with pytest.raises(WrongResults, match="3 of 64 copied bytes are wrong") as raised:
        run_lesson(single_rank_world(CpuBackend()), None, options, cli_context)
    assert raised.value.exit_code == 7
    assert "second touch" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["mismatches"]
