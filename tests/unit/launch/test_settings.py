"""Defaults for launch: where they come from, which counts, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from meshrun.launch.cli.launch import launch
from meshrun.launch.cli.main import main
from meshrun.launch.settings import SITE, Setting, defaults, read_settings, user_file
from meshrun.runner.run.installation import doctor
from meshrun.runner.world.preflight.problem import Problem


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    site, user = tmp_path / "site.toml", tmp_path / "user.toml"
    site.write_text('network = "ib0"\nhost-timeout = 30\n[slurm]\npartition = "gpu"\ncpus-per-task = 8\n')
    user.write_text('launcher = "slurm"\n[slurm]\npartition = "debug"\n')
    return site, user


def test_the_environment_counts_before_the_user_before_the_site(files: tuple[Path, Path]) -> None:
    site, user = map(str, files)
    found = read_settings({"MESHRUN_NETWORK": "eth7", "MESHRUN_LAUNCHER": ""}, files)
    assert found == [
        Setting("host_timeout", 30, site),
        Setting("launcher", "slurm", user),
        Setting("network", "eth7", "MESHRUN_NETWORK"),
        Setting("slurm.cpus_per_task", 8, site),
        Setting("slurm.partition", "debug", user),
    ]
    target = launch.commands["slurm"]
    assert defaults(found, "slurm", target) == {
        "network": "eth7",
        "host_timeout": "30",
        "cpus_per_task": "8",
        "partition": "debug",
    }
    assert defaults(found, "mpirun", launch.commands["mpirun"]) == {"network": "eth7", "host_timeout": "30"}


def test_a_file_from_windows(files: tuple[Path, Path]) -> None:
    expected = read_settings({}, files)
    for file in files:
        file.write_bytes(file.read_text().replace("\n", "\r\n").encode("utf-8-sig"))
    assert read_settings({}, files) == expected


def test_no_file_is_no_setting(tmp_path: Path) -> None:
    assert read_settings({}, (tmp_path / "none.toml",)) == []
    assert user_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/meshrun/meshrun.toml")
    assert user_file({"XDG_CONFIG_HOME": "c"}).is_relative_to(Path.home()), "a relative one is ignored"
    assert SITE.is_absolute()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('netwrok = "ib0"', "'netwrok' is no setting. Did you mean 'network'?"),
        ("[slurmm]", "'slurmm' is no setting. Did you mean 'slurm'?"),
        ("network = [1]", "'network' is no setting"),
        ("network = ", "is not TOML"),
        ("xyzzy = 1", "Expected one of launcher, network, host_timeout, mpirun"),
    ],
)
def test_a_mistake_in_a_file_names_it(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(click.UsageError) as caught:
        read_settings({}, (tmp_path / "a.toml",))
    assert str(tmp_path / "a.toml") in str(caught.value)
    assert sentence in str(caught.value)


def test_a_targets_table_has_only_its_options() -> None:
    wrong = [Setting("slurm.partitions", "gpu", "site.toml")]
    with pytest.raises(click.UsageError, match=r"site.toml: 'partitions' is no option.*'partition'\?"):
        defaults(wrong, "slurm", launch.commands["slurm"])
    assert defaults(wrong, "mpirun", launch.commands["mpirun"]) == {}


def test_the_command_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "meshrun" / "meshrun.toml"
    file.parent.mkdir()
    file.write_text('launcher = "slurm"\nhost_timeout = 33\n[slurm]\npartition = "gpu7"\nmpi = "pmix"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ["-j", "2x8", "--print", "--", "selftest"]
    for target in (["launch"], ["launch", "slurm"]):
        assert main([*target, *words]) == 0
        script = capsys.readouterr().out
        assert "--partition=gpu7" in script
        assert "--host-timeout 33" in script
    assert main(["launch", "slurm", "--partition", "mine", *words]) == 0
    assert "--partition=mine" in capsys.readouterr().out
    file.write_text('launcher = "slrum"\n')
    assert main(["launch", *words]) == 2
    assert "launcher is 'slrum'; expected one of kubernetes, local, mpirun, slurm" in capsys.readouterr().err
    file.write_text('[slurm]\nmpi = "pmix"\ntime = "soon"\n')
    assert main(["launch", "slurm", *words]) == 2
    assert "'soon' is not a time limit" in capsys.readouterr().err
    file.write_text("host_timeout = 1\n")
    assert main(["launch", "slurm", "--mpi", "pmix", *words]) == 2
    assert "host-timeout" in capsys.readouterr().err
    assert main(["launch", *words]) == 2, "no launcher is set"
    assert "Missing TARGET before -j: one of kubernetes, local, mpirun, slurm" in capsys.readouterr().err


def test_the_doctor_shows_what_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MESHRUN_NETWORK", "ib3")
    main(["doctor", "--device", "cpu"])
    assert "setting network = ib3  (MESHRUN_NETWORK)" in capsys.readouterr().out


def test_the_doctor_escapes_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of settings and in its problems; those of a terminal could clear the screen, and what it says."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("MESHRUN_NETWORK", "ib\x1b[2J3")
    problem = Problem("cards differ", "n\x1b[2J1", "one card", "to look", (0,))
    monkeypatch.setattr(doctor, "find_problems", lambda *_: [problem])
    assert main(["doctor", "--device", "cpu"]) == 2
    written = capsys.readouterr()
    assert "\x1b" not in written.out + written.err
    assert "setting network = ib\\x1b[2J3  (" in written.out
    assert "FAILURE: cards differ: got n\\x1b[2J1, expected one card" in written.out
