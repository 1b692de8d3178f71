"""The hosts of these tests are what they say: apart, on one network, and gone when they are down."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hosts as hosts_module
import pytest
from hosts import Hosts, inside
from namespaces import HostsError, namespace, wait_for

SIZE = 1_500_000  # bytes of a copy over one TCP connection
# Prints bytes per second, from the first byte to the last.
RECEIVE = f"""
import socket, time
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    with server.accept()[0] as connection:
        left = {SIZE} - len(connection.recv(1))
        start = time.perf_counter()
        while left:
            left -= len(connection.recv(left))
        print({SIZE} / (time.perf_counter() - start))
"""
SEND = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes({SIZE}))
"""
pytestmark = pytest.mark.nightly
KINDS = ("net", "uts", "ipc", "pid", "mnt")
IDENTITY = 'hostname; cat /proc/sys/kernel/random/boot_id; for k in "$@"; do readlink /proc/self/ns/$k; done'


@pytest.fixture
def folder() -> Iterator[Path]:
    """For other hosts; with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as name:
        yield Path(name) / "hosts"


def answers(hosts: Hosts, host: str, seconds: int = 30) -> bool:
    return hosts.run("n1", ["ssh", "-o", f"ConnectTimeout={seconds}", host, "true"]).returncode == 0


def silent(hosts: Hosts, host: str) -> bool:
    return not answers(hosts, host, seconds=1)


@contextlib.contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next one that it writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def out(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def identity(hosts: Hosts, host: str) -> list[str]:
    """Name, boot id and namespaces."""
    return out(hosts.run(host, ["sh", "-c", IDENTITY, "sh", *KINDS])).split()


def boot_id(hosts: Hosts, host: str) -> str:
    return identity(hosts, host)[1]


def left_in(namespaces: set[str]) -> list[int]:
    """Processes of this machine in any of these."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if namespaces & {namespace(pid, kind) for kind in KINDS}]


def own_number(pid: int) -> int:
    """A process's number in its own PID namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(words.split()[-1]) for words in lines if words.startswith("NSpid:"))


def copied(hosts: Hosts, sender: str, receiver: str) -> float:
    """Bytes per second of a copy."""
    take, send = [sys.executable, "-c", RECEIVE], [sys.executable, "-c", SEND, hosts.address(receiver)]
    with started(hosts.command(receiver, take)) as taking:
        assert line(taking) == "listening"
        out(hosts.run(sender, send))
        return float(line(taking))


def test_every_host_has_its_own_name_boot_id_and_namespaces(hosts: Hosts) -> None:
    told = [identity(hosts, host) for host in hosts.names]
    assert [words[0] for words in told] == ["n1", "n2", "n3"]
    machine = [os.uname().nodename, Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    told.append([*machine, *(namespace("self", kind) for kind in KINDS)])
    for values in zip(*told, strict=True):
        assert len(set(values)) == 4


def test_every_host_reaches_every_other_by_ssh(hosts: Hosts) -> None:
    names = {host: boot_id(hosts, host) for host in hosts.names}
    for asking in hosts.names:
        for asked, expected in names.items():
            ask = ["ssh", asked, "cat /proc/sys/kernel/random/boot_id"]
            assert out(hosts.run(asking, ask)) == expected


def test_a_host_has_its_own_network_and_sees_no_other(hosts: Hosts) -> None:
    shown = out(hosts.run("n2", ["sh", "-c", "ls /sys/class/net; ip -o -4 address; ip route"]))
    assert shown.split()[:2] == ["eth0", "lo"]
    assert f"{hosts.address('n2')}/24" in shown
    assert "default" not in shown


def test_shared_memory_temporary_files_and_settings_are_a_host_s_own(hosts: Hosts) -> None:
    write = "mkdir /dev/shm/a; touch /dev/shm/a/b $TMPDIR/c /etc/meshrun-test; id -u >$TMPDIR/d"
    out(hosts.run("n1", ["ssh", "n2", write]))
    assert hosts.files("n2") == ["a", "a/b"]
    assert hosts.files("n2", hosts.temporary) == ["c", "d"]
    assert out(hosts.run("n2", ["sh", "-c", "cd $TMPDIR && ls"])) == "c\nd"
    assert out(hosts.run("n2", ["ls", "/etc/meshrun-test"])) == "/etc/meshrun-test"
    for host in ("n1", "n3"):
        assert hosts.files(host) == hosts.files(host, hosts.temporary) == []
        assert hosts.run(host, ["ls", "/etc/meshrun-test"]).returncode != 0
    assert list(hosts.temporary.iterdir()) == []
    assert not Path("/etc/meshrun-test").exists()
    size = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize)"
    assert int(out(hosts.run("n3", [sys.executable, "-c", size]))) == 256 << 20


def test_a_command_runs_in_the_same_folder_and_environment(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESHRUN_TEST_ONE", "1")
    say = 'echo "$PWD $MESHRUN_TEST_ONE $MESHRUN_TEST_TWO $TMPDIR"; echo here >seen-everywhere; exit 3'
    done = hosts.run("n3", ["sh", "-c", say], MESHRUN_TEST_TWO="2")
    assert done.stdout == f"{tmp_path} 1 2 {hosts.temporary}\n"
    assert done.returncode == 3
    assert out(hosts.run("n1", ["cat", "seen-everywhere"])) == "here"


def test_a_command_takes_signals_and_dies_with_its_process_here(hosts: Hosts) -> None:
    orderly = 'trap "exit 7" TERM; echo ready; while :; do sleep 0.01; done'
    with started(hosts.command("n1", ["sh", "-c", orderly])) as process:
        assert line(process) == "ready"
        os.kill(inside(process), signal.SIGTERM)
        assert process.wait(30) == 7
    with started(hosts.command("n3", ["sleep", "61"])) as process:
        wait_for(lambda: hosts.processes("n3"), "the command")
        process.kill()
        wait_for(lambda: not hosts.processes("n3"), "the command to be gone")
    with pytest.raises(subprocess.TimeoutExpired):
        hosts.run("n2", ["sleep", "61"], timeout=0.2)
    wait_for(lambda: not hosts.processes("n2"), "the command to be gone")


def test_processes_that_outlive_their_command_are_seen(hosts: Hosts) -> None:
    assert [hosts.processes(host) for host in hosts.names] == [[], [], []]
    out(hosts.run("n1", ["ssh", "n2", "sleep 61 >/dev/null 2>&1 </dev/null &"]))
    wait_for(lambda: [words for _, words in hosts.processes("n2")] == ["sleep 61"], "a lone process")
    assert hosts.processes("n1") == hosts.processes("n3") == []
    os.kill(hosts.processes("n2")[0][0], signal.SIGKILL)
    wait_for(lambda: not hosts.processes("n2"), "the process to be gone")


def test_traffic_is_counted_where_it_passes(hosts: Hosts) -> None:
    before = hosts.traffic()
    copied(hosts, "n1", "n2")
    sent, received = (
        {host: now[way] - before[host][way] for host, now in hosts.traffic().items()} for way in (0, 1)
    )
    assert sent["n1"] > SIZE
    assert received["n2"] > SIZE
    assert max(sent["n2"], received["n1"], sent["n3"], received["n3"]) < SIZE / 4


def test_a_limited_link_is_slow_both_ways_and_the_others_are_not(hosts: Hosts) -> None:
    limit = 20e6 / 8  # bytes per second
    hosts.rate("n3", "20mbit")
    limited = copied(hosts, "n1", "n3"), copied(hosts, "n3", "n1")
    free = [copied(hosts, "n1", "n2")]
    hosts.rate("n3", None)
    free += [copied(hosts, "n1", "n3"), copied(hosts, "n3", "n1")]
    assert max(limited) < 1.25 * limit  # the bucket is full at the start
    assert min(free) > 2 * max(limited)


def test_a_host_with_its_cable_pulled_is_silent_until_it_is_back(hosts: Hosts) -> None:
    hosts.link("n2", False)
    assert silent(hosts, "n2")
    assert answers(hosts, "n3")
    assert out(hosts.run("n2", ["cat", "/sys/class/net/eth0/carrier"])) == "0"
    assert out(hosts.run("n2", ["hostname"])) == "n2"  # all else goes on
    hosts.link("n2", True)
    wait_for(lambda: answers(hosts, "n2"), "n2 to be back")


def test_a_frozen_host_stands_still_and_goes_on(hosts: Hosts, tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    tick = ["sh", "-c", 'while :; do echo >>"$0"; sleep 0.01; done', str(ticks)]
    with started(hosts.command("n2", tick)) as process:
        wait_for(ticks.exists, "the first tick")
        hosts.freeze("n2")
        assert silent(hosts, "n2")
        before = ticks.stat().st_size
        assert answers(hosts, "n3")
        assert ticks.stat().st_size == before
        hosts.thaw("n2")
        wait_for(lambda: ticks.stat().st_size > before, "the next tick")
        assert answers(hosts, "n2")
        os.kill(inside(process), signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def test_a_host_without_power_is_gone_and_comes_back_empty(hosts: Hosts) -> None:
    mac = ["cat", "/sys/class/net/eth0/address"]  # the others remember it
    was, address = identity(hosts, "n2"), out(hosts.run("n2", mac))
    out(hosts.run("n2", ["sh", "-c", "touch /dev/shm/a $TMPDIR/b"]))
    with started(hosts.command("n2", ["sleep", "61"])) as process:
        inside(process)
        hosts.power_off("n2")
        assert process.wait(30) == -signal.SIGKILL
    assert left_in(set(was[2:])) == []
    assert hosts.processes("n2") == []
    assert hosts.files("n2") == []
    assert list(hosts.traffic()) == ["n1", "n3"]
    with pytest.raises(HostsError, match="n2 is not on"):
        hosts.run("n2", ["true"])
    assert silent(hosts, "n2")
    assert answers(hosts, "n3")
    hosts.start("n2")
    assert answers(hosts, "n2")
    now = identity(hosts, "n2")
    assert (now[0], out(hosts.run("n2", mac))) == (was[0], address)
    assert now[1] != was[1]
    assert hosts.files("n2") == hosts.files("n2", hosts.temporary) == []


def test_a_frozen_host_can_lose_its_power(hosts: Hosts) -> None:
    made = set(identity(hosts, "n2")[2:])
    with started(hosts.command("n2", ["sleep", "61"])) as process:
        inside(process)
        hosts.freeze("n2")
        hosts.power_off("n2")
        assert process.wait(30) == -signal.SIGKILL
    assert left_in(made) == []


def test_a_host_that_went_down_by_itself_can_be_started(hosts: Hosts) -> None:
    made = set(identity(hosts, "n2")[2:])
    os.kill(next(pid for pid in left_in(made) if own_number(pid) == 1), signal.SIGKILL)
    wait_for(lambda: not left_in(made), "n2 to be gone")
    hosts.start("n2")
    assert answers(hosts, "n2")


def test_hosts_are_renewed_whatever_was_done_to_them(hosts: Hosts) -> None:
    before = [boot_id(hosts, host) for host in hosts.names]
    hosts.link("n1", False)
    hosts.freeze("n2")
    hosts.rate("n3", "1mbit")
    hosts.power_off("n3")
    hosts.renew()
    assert all(answers(hosts, host) for host in hosts.names)
    assert not set(before) & {boot_id(hosts, host) for host in hosts.names}
    assert "tbf" not in out(hosts.run("n3", ["tc", "qdisc", "show", "dev", "eth0"]))


def test_a_host_that_is_as_it_was_goes_on(hosts: Hosts) -> None:
    before = [boot_id(hosts, host) for host in hosts.names]
    out(hosts.run("n1", ["ssh", "n2", "touch /dev/shm/a; rm /dev/shm/a"]))
    hosts.renew()
    assert [boot_id(hosts, host) for host in hosts.names] == before
    out(hosts.run("n1", ["ssh", "n2", "echo here >/etc/meshrun-test"]))
    out(hosts.run("n3", ["sh", "-c", "sleep 61 >/dev/null 2>&1 &"]))
    hosts.renew()
    now = [boot_id(hosts, host) for host in hosts.names]
    assert [was == now for was, now in zip(before, now, strict=True)] == [True, False, False]
    assert hosts.run("n2", ["ls", "/etc/meshrun-test"]).returncode != 0


def test_other_hosts_of_the_same_names_and_addresses_are_apart(hosts: Hosts, folder: Path) -> None:
    with Hosts(folder, domain="job.test") as others:
        assert others.address("n2") == hosts.address("n2")
        ask = ["ssh", "n2.job.test", "cat /proc/sys/kernel/random/boot_id"]
        assert out(others.run("n1", ask)) == boot_id(others, "n2") != boot_id(hosts, "n2")
        out(others.run("n2", ["touch", "/dev/shm/a"]))
        assert hosts.files("n2") == []
        hosts.link("n2", False)
        hosts.freeze("n3")
        assert answers(others, "n2")
        assert answers(others, "n3")
        hosts.thaw("n3")
    assert answers(hosts, "n3")


@pytest.mark.usefixtures("hosts")
def test_nothing_is_left_of_hosts_that_are_down(folder: Path) -> None:
    mounts, children = (Path(f"/proc/self/{name}") for name in ("mounts", f"task/{os.getpid()}/children"))
    before = mounts.read_text(), children.read_text()
    hosts = Hosts(folder)
    hosts.down()  # they never were up
    hosts.up()
    made = {name for host in hosts.names for name in identity(hosts, host)[2:]}
    with started(hosts.command("n1", ["ssh", "n2", "sleep 61"])) as process:
        wait_for(lambda: hosts.processes("n2"), "a process on n2")
        assert len(left_in(made)) >= 5  # three sshd's, ssh and sleep
        hosts.down()
        assert process.wait(30) in (-signal.SIGKILL, 255)  # 255: ssh saw n2 go first
    hosts.down()
    assert left_in(made) == []
    assert not folder.exists()
    assert (mounts.read_text(), children.read_text()) == before


@pytest.mark.usefixtures("hosts")
def test_hosts_die_with_the_process_that_made_them(folder: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(hosts_module.__file__).parent)!r})
from hosts import Hosts
with Hosts(Path({str(folder)!r})) as hosts:
    for host in hosts.names:
        print(hosts.run(host, ["readlink", "/proc/self/ns/pid"]).stdout.strip(), flush=True)
    time.sleep(61)
"""
    with started([sys.executable, "-c", program]) as owner:
        made = {line(owner) for _ in range(3)}
        assert len(made) == 3
        assert len(left_in(made)) == 3
    wait_for(lambda: not left_in(made), "the hosts to be gone")


@pytest.mark.usefixtures("hosts")
def test_hosts_that_cannot_come_up_say_why_and_leave_nothing(folder: Path) -> None:
    with pytest.raises(HostsError, match=r"n1 to start: .*/dev/shm"):
        Hosts(folder, shm="much").up()
    assert not folder.exists()
    folder.mkdir()
    (folder / "kept").touch()
    with pytest.raises(FileExistsError):
        Hosts(folder).up()
    assert (folder / "kept").exists()


def test_a_machine_without_root_or_programs_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert hosts_module.problem.__wrapped__() == "only root can make hosts in namespaces"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(hosts_module, "PROGRAMS", ("sh", "no-such-sshd"))
    assert hosts_module.problem.__wrapped__() == "hosts in namespaces need no-such-sshd, not installed here"
