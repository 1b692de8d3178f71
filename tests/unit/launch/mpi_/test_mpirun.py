"""A spec in each launcher's words, and what a run across hosts starts; the launcher is a script here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from meshrun.launch.mpi import launcher as mpi_launcher
from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi import local, mpirun, ssh_hosts
from meshrun.launch.mpi.environment import environment, forwarded, on_interface
from meshrun.launch.mpi.launcher import AS_ROOT, Launcher, Vendor
from meshrun.launch.mpi.mpirun import launcher_command
from meshrun.launch.mpi.rank_command import PROGRAM, run_options, spec_options
from meshrun.launch.spec import LaunchSpec, Watching, parse_endpoint
from meshrun.launch.supervise import supervisor
from meshrun.launch.supervise.cleanup import RUN_MARK
from meshrun.launch.supervise.supervisor import Supervision
from meshrun.runner.errors import UserError
from meshrun.runner.world.run_status import LINE

OPEN_MPI_5 = "mpiexec (Open MPI) 5.0.11"
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4"
MPICH = "HYDRA build details:"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260301 (id: 1234)"
CHECK_NAMES = ssh_hosts.check_names
VENDORS: tuple[Vendor, ...] = ("Open MPI", "MPICH", "Intel MPI")
SPEC = LaunchSpec(("bench", "all_reduce", "-b", "8"), 2, 8, ("n1", "n2"))
ON_ETH1 = LaunchSpec(("selftest",), 2, 8, ("n1", "me@n2"), network="eth1", host_timeout=30.0)
UNEVEN = LaunchSpec(("selftest",), 2, 8, ("n1", "n2"), slots=(8, 4))
SSH = (
    "-o BatchMode=yes -o ConnectTimeout=10 -o ConnectionAttempts=3 "
    "-o ServerAliveInterval=5 -o ServerAliveCountMax=3"
)
# A launcher that notes how it was called. A rank 0 would leave the record.
FAKE = """\
#!{python}
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print({version!r})
    sys.exit()
with open({note!r}, "w") as note:
    json.dump([sys.argv[1:], dict(os.environ)], note)
for word in sys.argv:
    if word.startswith("@"):
        sys.stderr.write(f"{line} {{word[1:]}} record {{{{}}}}\\n")
"""


@dataclass
class Machine:
    """One with a launcher that is a script, and with an ssh that reaches nobody."""

    folder: Path

    def install(self, version: str) -> Launcher:
        path = self.folder / "bin" / "mpiexec"
        text = FAKE.format(python=sys.executable, version=version, note=str(self.note), line=LINE)
        path.write_text(text)
        path.chmod(0o755)
        return mpi_launcher.find()

    @property
    def note(self) -> Path:
        return self.folder / "called.json"

    def called(self) -> tuple[list[str], dict[str, str]]:
        called, variables = json.loads(self.note.read_text())
        return called, variables


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for folder in ("env", "bin"):
        (tmp_path / folder).mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2; exit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(mpi_library, "check", lambda *_: None)  # the launcher is not this Python's
    monkeypatch.setattr(ssh_hosts, "check_names", lambda *_: None)  # hosts are this one
    return Machine(tmp_path)


def launcher(vendor: Vendor) -> Launcher:
    return Launcher(Path("/opt/mpiexec"), vendor, bundled=False)


@pytest.mark.parametrize(
    ("version", "spec", "variables", "expected"),
    [
        (OPEN_MPI_5, SPEC, {}, "--host n1:8,n2:8 --map-by slot --bind-to none -n 16"),
        (OPEN_MPI_4, SPEC, {}, "--host n1:8,n2:8 --map-by slot --bind-to none -n 16"),
        (
            OPEN_MPI_5,
            ON_ETH1,
            {"UCX_TLS": "tcp", "NCCL_DEBUG": "INFO"},
            "--host n1:8,me@n2:8 --map-by slot --bind-to none -x NCCL_DEBUG -x UCX_TLS -n 16",
        ),
        (MPICH, SPEC, {"NCCL_DEBUG": "INFO"}, "-hosts n1,n2 -ppn 8 -n 16"),
        (MPICH, ON_ETH1, {}, "-hosts n1,me@n2 -ppn 8 -iface eth1 -n 16"),
        (OPEN_MPI_5, UNEVEN, {}, "--host n1:8,n2:4 --map-by slot --bind-to none -n 12"),
        (MPICH, UNEVEN, {}, "-hosts n1:8,n2:4 -n 12"),
        (INTEL, SPEC, {"NCCL_DEBUG": "INFO"}, "-hosts n1,n2 -ppn 8 -n 16"),
        (INTEL, ON_ETH1, {}, "-hosts n1,me@n2 -ppn 8 -iface eth1 -n 16"),
    ],
)
def test_each_vendors_words(
    machine: Machine, version: str, spec: LaunchSpec, variables: dict[str, str], expected: str
) -> None:
    found = machine.install(version)
    assert launcher_command(spec, found, variables) == [str(found.path), *expected.split()]


def test_different_slots_need_a_launcher_that_takes_them(machine: Machine) -> None:
    found = machine.install(INTEL)
    with pytest.raises(
        UserError, match=r"one number of ranks for all hosts: got n1:8, n2:4\. Try: -j 2x4, or"
    ):
        launcher_command(UNEVEN, found, {})


NETWORK = {
    "NCCL_SOCKET_IFNAME": "=eth1",
    "UCX_NET_DEVICES": "eth1",
    "FI_TCP_IFACE": "eth1",
    "OMPI_MCA_btl_tcp_if_include": "eth1",
    "OMPI_MCA_oob_tcp_if_include": "eth1",
    "PRTE_MCA_prte_if_include": "eth1",
}
OPEN_MPI_VARIABLES = {
    "PRTE_MCA_plm_ssh_args": SSH,
    "OMPI_MCA_plm_rsh_args": SSH,
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^ofi,openib,uct",
}
INTEL_VARIABLES = {
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SSH,
    "I_MPI_PIN": "off",
    "I_MPI_OFI_PROVIDER": "tcp",
}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (OPEN_MPI_5, OPEN_MPI_VARIABLES),
        (OPEN_MPI_4, OPEN_MPI_VARIABLES),
        (MPICH, {"HYDRA_LAUNCHER_EXTRA_ARGS": SSH, "FI_PROVIDER": "tcp"}),
        (INTEL, INTEL_VARIABLES),
    ],
)
def test_each_vendors_variables(machine: Machine, version: str, expected: dict[str, str]) -> None:
    found = machine.install(version)
    assert environment(SPEC, found, {"HOME": "/home/me"}) == {"HOME": "/home/me", **expected}
    later = {name: value.replace("Interval=5", "Interval=10") for name, value in expected.items()}
    assert environment(ON_ETH1, found, {}) == {**later, **NETWORK}


def test_ssh_notices_a_silent_host_in_about_the_time_that_it_may_be_silent() -> None:
    for seconds, interval in ((3.0, 1), (15.0, 5), (600.0, 200)):
        told = environment(LaunchSpec(("selftest",), host_timeout=seconds), launcher("MPICH"), {})
        assert f"ServerAliveInterval={interval} " in told["HYDRA_LAUNCHER_EXTRA_ARGS"]


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_the_user_has_set_stays(vendor: Vendor) -> None:
    defaults = environment(SPEC, launcher(vendor), {})
    mine = dict.fromkeys(defaults, "mine")
    assert environment(SPEC, launcher(vendor), mine) == mine


def test_a_variable_for_this_run_wins_over_an_inherited_one() -> None:
    spec = LaunchSpec(("selftest",), settings={"OMPI_MCA_btl": "self,tcp", "NCCL_DEBUG": "INFO"})
    told = environment(spec, launcher("Open MPI"), {"NCCL_DEBUG": "WARN"})
    assert (told["OMPI_MCA_btl"], told["NCCL_DEBUG"]) == ("self,tcp", "INFO")


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_network_wins_over_an_inherited_one(vendor: Vendor) -> None:
    inherited = dict.fromkeys(on_interface("eth1"), "ib")
    told = environment(ON_ETH1, launcher(vendor), inherited)
    assert {name: told[name] for name in inherited} == NETWORK
    untouched = environment(SPEC, launcher(vendor), inherited)
    assert {name: untouched[name] for name in inherited} == inherited


@pytest.mark.parametrize("value", ["=ib0", "^docker0,lo", "eth,ib", "=eth0:4000", ""])
def test_a_variable_for_this_run_wins_over_the_network_for_its_library(value: str) -> None:
    spec = replace(ON_ETH1, settings={"NCCL_SOCKET_IFNAME": value})
    told = environment(spec, launcher("Open MPI"), {"UCX_NET_DEVICES": "ib"})
    assert {name: told[name] for name in NETWORK} == {**NETWORK, "NCCL_SOCKET_IFNAME": value}


@pytest.mark.parametrize("name", ["OMPI_MCA_btl_tcp_if", "OMPI_MCA_oob_tcp_if", "PRTE_MCA_prte_if"])
def test_open_mpi_gets_interfaces_to_include_or_to_exclude_but_not_both(name: str) -> None:
    excluded = {f"{name}_exclude": "docker0"}
    inherited = environment(ON_ETH1, launcher("Open MPI"), excluded)
    assert (inherited.get(f"{name}_include"), inherited.get(f"{name}_exclude")) == ("eth1", None)
    told = environment(replace(ON_ETH1, settings=excluded), launcher("Open MPI"), {})
    assert (told.get(f"{name}_include"), told.get(f"{name}_exclude")) == (None, "docker0")


def test_root_is_allowed_only_where_it_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    for euid, expected in ((1000, set[str]()), (0, names)):
        monkeypatch.setattr(os, "geteuid", lambda euid=euid: euid)
        assert names & environment(SPEC, launcher("Open MPI"), {}).keys() == expected
        assert not names & environment(SPEC, launcher("MPICH"), {}).keys()


def test_a_provider_of_the_users_is_intel_mpis_too(machine: Machine) -> None:
    found = machine.install(INTEL)
    assert "I_MPI_OFI_PROVIDER" not in environment(SPEC, found, {"FI_PROVIDER": "verbs"})


@pytest.mark.parametrize("name", ["NCCL_$(touch /tmp/x)", "UCX_A;reboot", "FI_A B", "NCCL_\xe9"])
def test_a_variable_whose_name_a_shell_would_run_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="a variable's name cannot be forwarded to other hosts"):
        forwarded({"NCCL_ALGO": "Ring", name: "1"})


def test_what_ranks_on_other_hosts_must_have() -> None:
    theirs = {
        "NCCL_DEBUG": "INFO",
        "UCX_TLS": "tcp",
        "FI_PROVIDER": "tcp",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "MESHRUN_RUN": "/run",
        "LD_LIBRARY_PATH": "/opt/lib",
        "PYTHONFAULTHANDLER": "1",
    }
    ours = {"HOME": "/home/me", "PATH": "/bin", "NCCL": "1", "MY_NCCL_DEBUG": "1", "LD_LIBRARY_PATH_32": "x"}
    assert forwarded({**theirs, **ours}) == theirs


def reached(monkeypatch: pytest.MonkeyPatch, *names: str, interface: str | None = None) -> None:
    """Have these hosts answer, reached by an interface, or None for this machine."""
    found = [ssh_hosts.HostProbe(name, None, interface) for name in names]
    monkeypatch.setattr(ssh_hosts, "probe_hosts", lambda *_: found)


def here(**rest: Any) -> LaunchSpec:
    """Two hosts that both are this one, and are asked without ssh."""
    command = ("bench", "all_reduce", "--min-busbw", "1e-9; exit 3", "it's")
    return LaunchSpec(command, 2, 3, (os.uname().nodename, "localhost"), **rest)


SETTINGS = {"MY_SETTING": "two words; $HOME 'quoted'", "NCCL_DEBUG": "INFO"}
# What only a run has; what a shell sets.
OF_A_RUN = {RUN_MARK, "PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"}
OF_A_SHELL = {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"}


@pytest.mark.parametrize("version", [OPEN_MPI_5, MPICH, INTEL])
@pytest.mark.parametrize("network", [None, "lo"])
def test_what_is_shown_is_what_is_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, version: str, network: str | None
) -> None:
    """For a shell of the same surroundings, in which a batch system speaks of other hosts."""
    machine.install(version)
    for name, value in (
        ("SLURM_JOB_ID", "7"),
        ("PMI_RANK", "0"),
        ("NCCL_SOCKET_IFNAME", "ib"),
        ("UCX_B", ""),
    ):
        monkeypatch.setenv(name, value)
    spec = here(settings=SETTINGS, network=network, host_timeout=7.5)
    shown = mpirun.preview(spec)
    assert mpirun.start(spec) == 0
    started, variables = machine.called()
    machine.note.unlink()
    subprocess.run(["sh", "-c", shown], check=True)
    typed, variables_typed = machine.called()

    place = started.index("--run-dir")
    assert started[place + 1][0] == "@"
    del started[place : place + 2]
    if RUN_MARK in started:
        mark = started.index(RUN_MARK)
        assert started[mark - 1] == "-x"
        del started[mark - 1 : mark + 1]
    assert typed == started
    ignored = OF_A_RUN | OF_A_SHELL
    assert {name: value for name, value in variables_typed.items() if name not in ignored} == {
        name: value for name, value in variables.items() if name not in ignored
    }
    assert variables["MY_SETTING"] == SETTINGS["MY_SETTING"]
    assert "SLURM_JOB_ID" not in variables


def test_what_is_shown_for_this_machine_is_what_is_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root with more ranks than cores, where Open MPI needs most variables."""
    machine.install(OPEN_MPI_5)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(mpi_launcher, "cores", lambda: 1)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    spec = LaunchSpec(("selftest",), 1, 2, settings=SETTINGS)
    shown = local.preview(spec)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    local.start(spec.ranks, spec.words)
    started, variables = machine.called()
    for name in SETTINGS:
        monkeypatch.delenv(name)
    subprocess.run(["sh", "-c", shown], check=True)
    typed, variables_typed = machine.called()
    place = started.index("--run-dir")
    assert typed == [*started[:place], *started[place + 2 :]]
    ignored = OF_A_RUN | OF_A_SHELL
    assert {name: value for name, value in variables_typed.items() if name not in ignored} == {
        name: value for name, value in variables.items() if name not in ignored
    }
    assert AS_ROOT.items() <= variables.items()
    assert variables[RUN_MARK] == started[place + 1]
    assert "OMPI_MCA_mpi_yield_when_idle" in variables


def test_ranks_are_told_the_plan_and_where_to_leave_the_verdict(machine: Machine) -> None:
    machine.install(OPEN_MPI_5)
    assert mpirun.start(here(network="lo", host_timeout=7.5), Supervision(93)) == 0
    called, variables = machine.called()
    program = called.index(PROGRAM[0])
    assert tuple(called[program : program + 2]) == PROGRAM
    assert called[called.index("--expect") :][:3] == ["--expect", "2", "3"]
    assert called[called.index("--expect-network") :][:2] == ["--expect-network", "lo"]
    assert called[called.index("--host-timeout") :][:2] == ["--host-timeout", "7.5"]
    assert "--tty" not in called, "a bar would be passed on when all is over"
    assert "-x MESHRUN_RUN" in " ".join(called[:program])
    assert variables["PRTE_MCA_prte_tmpdir_base"] == variables["OMPI_MCA_orte_tmpdir_base"]
    for folder in (variables[RUN_MARK], variables["PRTE_MCA_prte_tmpdir_base"]):
        assert not Path(folder).exists(), "nothing is left"


def test_a_bar_is_drawn_where_the_launcher_passes_it_on(machine: Machine) -> None:
    machine.install(OPEN_MPI_4)
    assert mpirun.start(here(), Supervision(93)) == 0
    called, _ = machine.called()
    assert called[called.index("--tty") :][:2] == ["--tty", "93"]


@pytest.mark.parametrize(("version", "expected"), [(OPEN_MPI_5, []), (INTEL, []), (MPICH, ["removed"])])
@pytest.mark.parametrize(
    "start",
    [lambda: mpirun.start(here()), lambda: local.start(1, ["selftest"])],
    ids=["mpirun", "local"],
)
def test_what_mpichs_daemons_left_is_looked_for_only_if_they_are_used(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    expected: list[str],
    start: Callable[[], int],
) -> None:
    machine.install(version)
    looks: list[str] = []
    monkeypatch.setattr(supervisor, "remove_topologies", lambda: looks.append("removed"))
    start()
    assert looks[:1] == expected


def test_the_launchers_good_status_without_a_record_is_a_failure(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    found = machine.install(OPEN_MPI_5)
    found.path.write_text(found.path.read_text().replace(" record ", " nothing "))
    assert mpirun.start(here()) == 1
    assert "no completion record" in capsys.readouterr().err


def test_nothing_is_started_on_one_host_under_two_names(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_hosts, "check_names", CHECK_NAMES)
    machine.install(MPICH)
    with pytest.raises(UserError, match=f"{os.uname().nodename} and localhost are the same host"):
        mpirun.start(here())
    assert not machine.note.exists()


def test_nothing_is_started_unless_every_host_answers(machine: Machine) -> None:
    machine.install(OPEN_MPI_5)
    with pytest.raises(UserError, match=r"no answer by ssh from n1 \(Permission denied"):
        mpirun.start(LaunchSpec(("selftest",), 2, 1, (os.uname().nodename, "n1")), timeout=1.0)
    assert not machine.note.exists()


def test_the_route_to_the_hosts_is_the_network_where_none_is_asked_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install(MPICH)
    spec = here()
    reached(monkeypatch, *spec.names, interface="eth7")
    assert mpirun.start(spec) == 0
    called, variables = machine.called()
    assert called[called.index("-iface") :][:2] == ["-iface", "eth7"]
    assert called[called.index("--expect-network") :][:2] == ["--expect-network", "eth7"]
    assert variables["NCCL_SOCKET_IFNAME"] == "=eth7"
    assert f"network: eth7, which reaches {', '.join(spec.names)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "^docker0,lo"),
        ("NCCL_SOCKET_IFNAME", "=eth0:4000"),
        ("UCX_NET_DEVICES", "mlx5_0:1"),
        ("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/8"),
        ("OMPI_MCA_btl_tcp_if_exclude", "docker0,lo"),
    ],
)
@pytest.mark.parametrize("typed", [True, False], ids=["-x", "environment"])
def test_a_variable_of_the_user_wins_and_the_others_get_the_route_to_the_hosts(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    typed: bool,
) -> None:
    machine.install(OPEN_MPI_5)
    spec = here(settings={name: value} if typed else {})
    if not typed:
        monkeypatch.setenv(name, value)
    reached(monkeypatch, *spec.names, interface="eth7")
    assert mpirun.start(spec) == 0
    called, variables = machine.called()
    chosen = {other: text.replace("eth1", "eth7") for other, text in NETWORK.items()}
    if name.endswith("_exclude"):
        del chosen["OMPI_MCA_btl_tcp_if_include"]
    assert {other: variables.get(other) for other in {*chosen, name}} == {**chosen, name: value}
    assert " ".join(called).count(f"-x {name} ") == 1
    assert f"(--network selects another); kept as set: {name}\n" in capsys.readouterr().err


def test_hosts_are_cleaned_up_after_the_run_and_those_that_do_not_answer_are_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = machine.install(OPEN_MPI_5)
    found.path.write_text(found.path.read_text().replace(" record ", " nothing "))
    swept: list[list[str]] = []

    def run_on_others(names: tuple[str, ...], command: list[str]) -> list[str]:
        assert names == here().names
        swept.append(command)
        return ["localhost"]

    monkeypatch.setattr(ssh_hosts, "run_on_others", run_on_others)
    assert mpirun.start(here()) == 1
    called, variables = machine.called()
    ((python, isolated, script, mark, folder, seconds, token),) = swept
    assert (python, isolated, Path(script).name) == (sys.executable, "-I", "cleanup.py")
    assert (mark, folder) == (variables[RUN_MARK], variables["PRTE_MCA_prte_tmpdir_base"])
    assert float(seconds) >= 1
    assert f"@{token}" in called
    assert "host localhost no longer answers" in capsys.readouterr().err


def test_a_run_goes_on_on_the_hosts_that_are_left(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first start ends without a record, and host localhost does not answer afterwards."""
    found = machine.install(OPEN_MPI_5)
    text = found.path.read_text()
    found.path.write_text(text.replace(" record ", " nothing "))
    asked: list[tuple[str, ...]] = []

    def run_on_others(names: tuple[str, ...], command: list[str]) -> list[str]:
        found.path.write_text(text)
        asked.append(names)
        return ["localhost"] if len(asked) == 1 else []

    monkeypatch.setattr(ssh_hosts, "run_on_others", run_on_others)
    spec = here()
    assert mpirun.start(spec, Supervision(restarts=1)) == 0
    called, _ = machine.called()
    assert called[called.index("--host") + 1] == f"{spec.names[0]}:3"
    assert called[called.index("--expect") :][:3] == ["--expect", "1", "3"]
    assert asked == [spec.names, spec.names[:1]]
    lost, again = capsys.readouterr().err.splitlines()
    assert "host localhost no longer answers" in lost
    assert again == (
        "meshrun: starting again without localhost, on 3 ranks of 1 host, from the beginning (restart 1 of 1)"
    )


def test_a_chosen_stall_timeout_reaches_the_ranks() -> None:
    assert "--stall-timeout" not in [*spec_options(LaunchSpec(("selftest",))), *run_options("/d", None)]
    watching = Watching(stall_timeout=0.0)
    for options in (
        spec_options(LaunchSpec(("selftest",), stall_timeout=0.0)),
        run_options("/d", None, watching),
    ):
        assert options[options.index("--stall-timeout") + 1] == "0"


def test_that_a_run_is_watched_reaches_the_ranks() -> None:
    assert "--watch" not in [*spec_options(LaunchSpec(("selftest",))), *run_options("/d", None)]
    assert "--watch" in spec_options(LaunchSpec(("selftest",), watch=True))
    assert "--watch" in run_options("/d", None, Watching(watch=True))


@pytest.mark.parametrize("text", ["9400", "0", "127.0.0.1:9400", "n1.site:80", "[fe80::1]:9400"])
def test_where_metrics_are_served_reaches_the_ranks(text: str) -> None:
    assert "--metrics" not in [*spec_options(LaunchSpec(("selftest",))), *run_options("/d", None)]
    place = parse_endpoint(text)
    for options in (
        spec_options(LaunchSpec(("selftest",), metrics=place)),
        run_options("/d", None, Watching(metrics=place)),
    ):
        assert options[options.index("--metrics") + 1] == text
