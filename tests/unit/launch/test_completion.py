"""Completion of the command in shells: what a shell is told, and the line in its start-up file."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshrun.launch.cli.main import main
from meshrun.launch.completion import MARK, STARTUP, VARIABLE, add

MESHRUN = Path(sys.executable).with_name("meshrun")


def completions(words: list[str], current: int) -> list[str]:
    """What bash is told for COMP_WORDS and COMP_CWORD."""
    asked = {VARIABLE: "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(current)}
    done = subprocess.run([MESHRUN], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_and_jobs_are_completed() -> None:
    assert completions(["meshrun", "va"], 1) == ["validate"]
    assert "laplacian" in completions(["meshrun", "run", ""], 2)
    assert completions(["meshrun", "run", "laplacian", "--verif"], 3) == ["--verify"]
    assert "kubernetes" in completions(["meshrun", "launch", ""], 2)


@pytest.mark.parametrize("shell", sorted(STARTUP))
def test_each_shells_script_calls_meshrun(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{VARIABLE}={shell}_complete" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_it_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        assert main(["completion", "bash", "--install"]) == 0
    text = (tmp_path / ".bashrc").read_text()
    assert text.count(MARK) == 1
    assert text.startswith("alias ll='ls -l'\n"), "what was there stays a line of its own"
    assert main(["completion", "fish", "--install"]) == 0
    assert VARIABLE in (tmp_path / ".config/fish/completions/meshrun.fish").read_text()
    assert add(tmp_path / ".bashrc", "bash", "").endswith("has it already")


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_a_shells_file_keeps_its_bytes_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles", tmp_path / ".bashrc"
    real.write_bytes(b"# Gr\xfc\xdfe\r\n")
    link.symlink_to(real)
    add(link, "bash", "")
    assert link.is_symlink()
    assert real.read_bytes().startswith(b"# Gr\xfc\xdfe\r\n")
    assert b"meshrun completion bash" in real.read_bytes()


def test_a_shells_file_survives_a_full_disk(tmp_path: Path) -> None:
    file = tmp_path / ".bashrc"
    file.write_text("export PRECIOUS=1\n" * 100)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            add(file, "bash", "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "export PRECIOUS=1\n" * 100
    assert list(tmp_path.iterdir()) == [file]
