"""Hosts are asked by ssh, which is a script here: what it says decides who is named, and how soon."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meshrun.launch.mpi import library as mpi_library
from meshrun.launch.mpi import ssh_hosts
from meshrun.launch.mpi.launcher import Vendor
from meshrun.launch.mpi.library import Library
from meshrun.launch.mpi.ssh_hosts import (
    BEGIN,
    HostProbe,
    check_names,
    common_interface,
    is_local,
    is_permanent,
    probe_hosts,
    run_on_others,
)
from meshrun.launch.spec import LaunchSpec
from meshrun.runner.errors import UserError
from meshrun.runner.processes import boot_id

# Of ssh's words the last two count, the host and what is to be done there; each host is a script.
SSH = """\
#!/bin/sh
while [ $# -gt 2 ]; do shift; done
command=$2
[ "$command" = "sh -s" ] && command=$(cat)
echo "$command" >>{folder}/asked-of-$1
exec sh {folder}/$1 "$command"
"""
# A host with two interfaces. The lines are those of iproute2.
SOUND = """\
SSH_CONNECTION="10.0.0.1 51514 10.0.0.7 22"
ip() {
    [ "$*" = "-o addr show to 10.0.0.7" ] && echo "2: eth1    inet 10.0.0.7/24 brd 10.0.0.255 scope global"
}
cut() { if [ "$6" = /proc/net/dev ]; then printf '    lo\\n  eth0\\n  eth1\\n'; else command cut "$@"; fi; }
uname() { echo "$NAME"; }
cat() { if [ "$1" = /proc/sys/kernel/random/boot_id ]; then echo "boot-$NAME"; else command cat "$@"; fi; }
eval "$1"
"""
REFUSED = 'echo "ssh: connect to host n port 22: Connection refused" >&2; exit 255\n'
PYTHON = "/opt/venv/bin/python"  # there on no machine of these tests, unless a host says so
THERE = "test() { true; }\n"


class Ssh:
    """Scripts by the names of hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def host(self, name: str, script: str = THERE + SOUND) -> str:
        (self.folder / name).write_text(f"NAME={name}\n{script}")
        return name

    def asked(self, name: str) -> int:
        """How often."""
        log = self.folder / f"asked-of-{name}"
        return log.read_text().count(BEGIN) if log.exists() else 0


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    folder = tmp_path / "hosts"
    for made in (folder, tmp_path / "bin"):
        made.mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(SSH.format(folder=folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_hosts, "PAUSE", 0.01)
    return Ssh(folder)


def sound(name: str, interface: str = "eth1") -> HostProbe:
    """What such a host says of itself."""
    return HostProbe(name, None, interface, name, f"boot-{name}")


def ask(*names: str, timeout: float = 60.0, network: str | None = None) -> list[HostProbe]:
    return probe_hosts(LaunchSpec(("selftest",), len(names), 1, names, network=network), PYTHON, timeout)


def refused(*names: str, timeout: float = 60.0, network: str | None = None) -> str:
    with pytest.raises(UserError) as failure:
        ask(*names, timeout=timeout, network=network)
    return str(failure.value)


def test_hosts_tell_the_interface_they_were_reached_by(ssh: Ssh) -> None:
    assert ask(ssh.host("n1"), ssh.host("n2")) == [sound("n1"), sound("n2")]


def test_forty_hosts_at_once(ssh: Ssh) -> None:
    names = [ssh.host(f"n{number}") for number in range(40)]
    assert [answer.host for answer in ask(*names)] == names


def test_hosts_are_asked_at_the_same_time(ssh: Ssh, tmp_path: Path) -> None:
    """Each answers when all have been asked."""
    met = f"while [ $(ls {tmp_path}/met* | wc -l) -lt 8 ]; do sleep 0.02; done\n"
    names = [ssh.host(f"n{n}", f"touch {tmp_path}/met{n}\n{met}{THERE}{SOUND}") for n in range(8)]
    assert len(ask(*names)) == 8


def test_what_a_login_shell_prints_is_no_answer(ssh: Ssh) -> None:
    ssh.host("n1", f"echo 'Welcome to the cluster'; echo 'no python today'\n{THERE}{SOUND}")
    assert ask("n1") == [sound("n1")]


def test_a_login_shell_may_greet_in_any_encoding(ssh: Ssh) -> None:
    name = ssh.host("n1", f"{THERE}printf 'Gr\\374\\337 Gott\\n'; printf '\\377' >&2\n{SOUND}")
    assert [probe.interface for probe in probe_hosts(LaunchSpec(("x",), 1, 1, (name,)), PYTHON)] == ["eth1"]


def test_an_sshd_that_is_just_starting_is_waited_for(ssh: Ssh) -> None:
    thrice = f"[ $(grep -c {BEGIN} {ssh.folder}/asked-of-n1) -gt 2 ] || {{ {REFUSED.strip()}; }}\n"
    ssh.host("n1", thrice + THERE + SOUND)
    assert ask("n1") == [sound("n1")]
    assert ssh.asked("n1") == 3


def test_one_that_never_starts_is_named_with_the_reason(ssh: Ssh) -> None:
    ssh.host("n2", REFUSED)
    assert refused(ssh.host("n1"), "n2", timeout=1.0) == (
        "no answer by ssh from n2 (ssh: connect to host n port 22: Connection refused): expected ssh n2 "
        "true, without a password, within 1 s. Try: run ssh-copy-id; check the host's name, power and "
        "firewall"
    )
    assert ssh.asked("n2") > 1
    assert ssh.asked("n1") == 1


@pytest.mark.parametrize(
    "reason",
    [
        "Permission denied (publickey,password).",
        "ssh: Could not resolve hostname n1: Name or service not known",
        "Host key verification failed.",
        "Bad configuration option: frobnicate",
    ],
)
def test_what_waiting_does_not_mend_is_told_at_once(ssh: Ssh, reason: str) -> None:
    ssh.host("n1", f"echo 'Warning: something else' >&2; echo '{reason}' >&2; exit 255\n")
    assert f"no answer by ssh from n1 ({reason})" in refused("n1")
    assert ssh.asked("n1") == 1


def test_every_silent_host_is_named_each_with_its_reason(ssh: Ssh) -> None:
    ssh.host("n1", "echo 'Permission denied (publickey).' >&2; exit 255\n")
    ssh.host("n2")
    ssh.host("n3", "echo 'Host key verification failed.' >&2; exit 255\n")
    ssh.host("n4", "exit 255\n")
    assert (
        "from n1 (Permission denied (publickey).), n3 (Host key verification failed.), n4 (no reason given):"
    ) in refused("n1", "n2", "n3", "n4", timeout=0.1)


def test_a_host_that_connects_and_hangs_is_named(ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_hosts, "ATTEMPT", 0.3)
    monkeypatch.setattr(ssh_hosts, "IMPORT", 0)
    ssh.host("n1", "exec sleep 600\n")
    assert "no answer by ssh from n1 (connected, but no answer)" in refused("n1", timeout=0.1)


def test_a_host_whose_python_is_missing_is_named(ssh: Ssh) -> None:
    assert refused(ssh.host("n1"), ssh.host("n2", SOUND), ssh.host("n3", SOUND)) == (
        f"{PYTHON} does not exist on n2, n3: expected the same Python environment at the same path on every "
        "host. Try: use a shared file system, or install it at the same path everywhere"
    )


def test_an_account_that_may_run_nothing_is_no_missing_python(ssh: Ssh) -> None:
    ssh.host("n1", "echo 'This account is currently not available.'; exit 1\n")
    assert "no answer by ssh from n1 (This account is currently not available.)" in refused("n1")
    ssh.host("n2", "echo 'sh: bad interpreter' >&2; exit 127\n")
    assert "no answer by ssh from n2 (sh: bad interpreter)" in refused("n2")


def test_the_path_of_python_is_one_word_there(ssh: Ssh, tmp_path: Path) -> None:
    python = tmp_path / "a folder; exit 3" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    spec = LaunchSpec(("selftest",), 1, 1, (ssh.host("n1", SOUND),))
    assert [answer.host for answer in probe_hosts(spec, str(python))] == ["n1"]
    with pytest.raises(UserError, match="does not exist on n1"):
        probe_hosts(spec, f"{python}3")


def test_hosts_tell_the_mpi_that_ranks_there_will_load(
    ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variables that they are given."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("MPI4PY_MPIABI", "it's")
    settings = {"LD_LIBRARY_PATH": "/opt/my mpi/lib", "NCCL_DEBUG": "INFO"}
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$LD_LIBRARY_PATH, $MPI4PY_MPIABI" = "/opt/my mpi/lib, it\'s" ] && echo "$MPI"\n'
    )
    python.chmod(0o755)
    for name, mpi in (("n1", "5 Open MPI"), ("n2", ""), ("n3", "Traceback")):
        ssh.host(name, f"export MPI='{mpi}'\n{SOUND}")
    found = probe_hosts(LaunchSpec(("selftest",), 3, 1, ("n1", "n2", "n3"), settings), str(python))
    assert [answer.mpi for answer in found] == [Library("Open MPI", 5), None, None]


def test_a_python_that_does_not_tell_its_mpi_in_time(
    ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_hosts, "IMPORT", 1)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    spec = LaunchSpec(("selftest",), 1, 1, (ssh.host("n1", SOUND),))
    assert probe_hosts(spec, str(python)) == [sound("n1")]


def test_a_host_without_iproute_cannot_tell_its_interface(ssh: Ssh) -> None:
    lacking = SOUND.replace("eval", "ip() { echo 'ip: not found' >&2; return 127; }\neval")
    assert ask(ssh.host("n1", THERE + lacking)) == [sound("n1", "")]


def test_a_network_that_a_host_does_not_have_is_named(ssh: Ssh) -> None:
    names = [ssh.host("n1"), ssh.host("n2", THERE + SOUND.replace("  eth0", "  ib0"))]
    assert len(ask(*names, network="eth1")) == 2
    assert refused(*names, network="eth0") == (
        "there is no network interface eth0 on n2: expected one of lo, ib0, eth1. Try: --network with "
        "one of these, or without it to use the route to the hosts"
    )
    assert "there is no network interface eth on n1, n2" in refused(*names, network="eth")


@pytest.mark.mpi_library
def test_this_machine_is_asked_without_ssh(ssh: Ssh) -> None:
    here = os.uname().nodename
    ssh.host(here, "exit 255")
    found = probe_hosts(LaunchSpec(("selftest",), 2, 1, (here, ssh.host("n2"))), sys.executable)
    assert found[0] == HostProbe(here, mpi_library.loaded(), None, here, boot_id())
    assert found[1].interface == "eth1"
    assert ssh.asked(here) == 0


def test_without_ssh_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused("n1") == (
        "no ssh on PATH, which is needed to reach other hosts. Try: apt-get install openssh-client, or use "
        "the site's batch system"
    )


@pytest.mark.parametrize(
    ("interfaces", "common"),
    [
        (["eth1", "eth1"], "eth1"),
        ([None, "eth1"], "eth1"),
        (["eth0", "eth1"], None),
        (["eth1", ""], None),
        ([""], None),
        (["lo", "lo"], None),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_common_interface(interfaces: list[str | None], common: str | None) -> None:
    found = [HostProbe(f"n{number}", None, name) for number, name in enumerate(interfaces)]
    assert common_interface(found) == common


def test_this_machine_has_its_name_with_a_domain_or_without(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = os.uname_result(("Linux", "n1.cluster", "6.1", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: machine)
    assert all(map(is_local, ["n1", "n1.cluster", "localhost", "me@n1"]))
    assert not any(map(is_local, ["n2", "n1.other", "n", "n11", "n1@n2", ""]))


def named(*hosts: tuple[str, str, str]) -> list[HostProbe]:
    """Hosts by the name that is typed, the host's own, and its boot id."""
    return [HostProbe(host, None, "eth1", name, boot) for host, name, boot in hosts]


@pytest.mark.parametrize("vendor", ["Open MPI", "MPICH", "Intel MPI"])
@pytest.mark.parametrize("host", ["N2", "10.0.0.2", "n2.cluster", "me@n2", "localhost"])
def test_a_host_under_two_names_is_refused(vendor: Vendor, host: str) -> None:
    with pytest.raises(UserError) as refused:
        check_names(named(("n1", "n1", "b1"), (host, "n2.cluster", "b2"), ("n2", "n2.cluster", "b2")), vendor)
    assert str(refused.value) == (
        f"{host} and n2 are the same host, n2.cluster. Try: list each host once, with all its ranks, such as "
        "-j 1x2 --hosts n2"
    )


def test_the_hint_for_a_host_under_two_names_has_one_of_them() -> None:
    with pytest.raises(UserError, match=r"-j 1x2 --hosts c7$"):
        check_names(named(("10.0.0.7", "c7", "b1"), ("c7", "c7", "b1")), "Open MPI")


@pytest.mark.parametrize("name", ["n1", "n1.b"])
def test_two_hosts_of_one_name_are_refused_for_open_mpi(name: str) -> None:
    hosts = named(("a", "n1.a", "b1"), ("b", name, "b2"), ("c", "n3", "b3"))
    with pytest.raises(UserError, match="a and b are different hosts, both named n1: Open MPI"):
        check_names(hosts, "Open MPI")
    check_names(hosts, "MPICH")
    check_names(hosts, "Intel MPI")


def test_two_names_that_are_one_to_open_mpi_are_refused() -> None:
    hosts = named(("x.a", "n1", "b1"), ("me@x.b", "n2", "b2"))
    with pytest.raises(UserError, match=r"x\.a and me@x\.b are one host to Open MPI, x"):
        check_names(hosts, "Open MPI")
    check_names(hosts, "MPICH")


def test_different_hosts_pass_even_if_they_cannot_tell_their_names() -> None:
    check_names(named(("10.0.0.1", "n1", "b1"), ("10.0.0.2", "n2", "b2"), ("x.a", "n3.a", "b1")), "Open MPI")
    check_names(named(("a", "", ""), ("b", "", "")), "Open MPI")
    check_names(named(("a", "n1", ""), ("b", "n1", "")), "MPICH")
    check_names([], "Open MPI")


def test_hopeless_reasons_are_few() -> None:
    assert not is_permanent("ssh: connect to host n1 port 22: Connection refused")
    assert not is_permanent("ssh: connect to host n1 port 22: No route to host")
    assert not is_permanent("kex_exchange_identification: Connection closed by remote host")


# Cleaning up.


def test_a_command_on_all_other_hosts(ssh: Ssh, tmp_path: Path) -> None:
    names = [ssh.host(f"n{number}", 'eval "$1"\n') for number in range(40)]
    words = ["sh", "-c", 'echo "$1" >>"$2"', "sh", "two words; exit 1", str(tmp_path / "a log")]
    assert run_on_others([os.uname().nodename, *names], words) == []
    assert (tmp_path / "a log").read_text() == "two words; exit 1\n" * 40


def test_hosts_that_fail_or_hang_are_the_ones_returned(ssh: Ssh) -> None:
    ssh.host("n1", "exec sleep 600\n")
    ssh.host("n2", "exit 0\n")
    ssh.host("n3", REFUSED)
    ssh.host("n4", "exit 1\n")
    assert run_on_others(["n1", "n2", "n3", "n4"], ["true"], timeout=3.0) == ["n1", "n3", "n4"]
