"""Several hosts on one Linux machine, for tests that need real ones: with ssh, cables and power switches.

A host is a network, UTS, IPC, PID and mount namespace with an sshd as PID 1 (boot.sh). It has a host name, a
boot id, an address, /dev/shm, TMPDIR, /run, /sys and /etc of its own, and on it `ssh n2` just works. The rest
of the file system is shared, as over NFS.

The hosts hang on one bridge, in a network namespace that leads nowhere else. Nothing of it is known outside
by a name or an address, so that any number of such networks can be up at once. Every process dies with the
thread that brought the hosts up, and a namespace, with its mounts and links, dies with its last process:
even kill -9 leaves no more than the folder behind.

Needs root, iproute2, util-linux, openssh-client and openssh-server.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from namespaces import (
    PATH,
    HostsError,
    Process,
    bytes_sent_and_received,
    call,
    child,
    command_line,
    command_name,
    end,
    entrances,
    hold,
    ip,
    members,
    namespace,
    parent,
    released,
    serves_ssh,
    signal_each,
    state,
    tc,
    wait_for,
)

PROGRAMS = ("ip", "tc", "nsenter", "unshare", "setpriv", "ssh", "ssh-keygen", "sshd")
NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")
BOOT = Path(__file__).with_name("boot.sh")
NETWORK = "10.77.77"
SSHD = ("sshd", "sshd-session", "sshd-auth")


@dataclass
class Hosts:
    """Hosts on one network; a context manager that has them up. To be used in one thread.

    folder: is made, holds all there is of the hosts on disk, and goes with them; its path should be short,
    because sockets are made in TMPDIR below it. names: host names, at most 254. shm: the size of each
    /dev/shm. domain: each host is also known as NAME.DOMAIN. All methods raise HostsError when the machine
    refuses what they ask.
    """

    folder: Path
    names: Sequence[str] = ("n1", "n2", "n3")
    shm: str = "256m"
    domain: str = ""
    _holders: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False, repr=False)
    _undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False, repr=False)
    _switch: int = field(default=0, init=False, repr=False)  # a process in the bridge's network namespace
    _changed: set[str] = field(default_factory=set, init=False, repr=False)  # hosts that were treated roughly
    _fresh: dict[str, list[list[str]]] = field(default_factory=dict, init=False, repr=False)  # their files

    def __enter__(self) -> Hosts:
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def up(self) -> None:
        with contextlib.ExitStack() as undo:
            self.folder.mkdir(mode=0o700)
            undo.callback(shutil.rmtree, self.folder)
            self._write_settings()
            switch = hold(["unshare", "--net", "sleep", "infinity"])
            undo.callback(end, switch)
            ours = namespace("self", "net")
            wait_for(lambda: namespace(switch.pid, "net") not in ("", ours), "a network namespace", switch)
            self._switch = switch.pid
            ip(self._switch, "link add br0 type bridge", "link set br0 up")
            undo.callback(self._stop, self.names)
            self._start(self.names)
            self._undo = undo.pop_all()

    def down(self) -> None:
        """Remove everything; nothing to do for hosts that are not up."""
        self._undo.close()

    @property
    def temporary(self) -> Path:
        """TMPDIR: one path, and behind it a folder of each host's own."""
        return self.folder / "tmp"

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self._number(host)}"

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command that runs `words` on a host, in this process's folder, for subprocess.

        A process that enters a PID namespace stays outside itself and waits for a child inside. It returns
        the child's status and takes the child along when it dies, but signals are for `inside(process)`.
        """
        enter = ["nsenter", f"--target={self._init(host)}", *NAMESPACES, "setpriv", "--pdeathsig", "KILL"]
        return [*enter, "env", f"--chdir={os.getcwd()}", f"TMPDIR={self.temporary}", *words]

    def run(
        self, host: str, words: Sequence[str], timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; subprocess.TimeoutExpired after `timeout` seconds."""
        with subprocess.Popen(
            self.command(host, words),
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            finally:  # kill the command, and not nsenter, which is to take its status
                signal_each(filter(None, [child(process)]), signal.SIGKILL)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def rate(self, host: str, limit: str | None) -> None:
        """Limit a host's link, each direction by itself, to "100mbit" or so; None lifts it."""
        self._changed.add(host)
        kind = f"tbf rate {limit} burst 128kb latency 50ms" if limit else "noqueue"
        tc(self._switch, f"qdisc replace dev {self._port(host)} root {kind}")
        tc(self._init(host), f"qdisc replace dev eth0 root {kind}")

    def link(self, host: str, up: bool) -> None:
        """Pull a host's cable, or plug it in: eth0 loses its carrier, and nothing else."""
        self._changed.add(host)
        ip(self._switch, f"link set {self._port(host)} {'up' if up else 'down'}")

    def freeze(self, host: str) -> None:
        """Stop every process of a host; its kernel still takes connections, as that of a hung host does."""
        self._changed.add(host)
        told: set[int] = set()

        def stopped() -> bool:
            states = {pid: state(pid) for pid in self._members(host)}
            moving = {pid for pid, letter in states.items() if letter not in "TtZX"}
            # A parent waits in vfork(2), state D, for a child that may be stopped already.
            stuck = {pid for pid in moving & told if states[pid] == "D"}
            followers = {parent(pid) for pid, letter in states.items() if letter == "T"}
            signal_each(moving, signal.SIGSTOP)
            told.update(moving)
            return moving == stuck and all(
                state(pid) in "TtZX" for pid in followers if command_name(pid) == "nsenter"
            )

        wait_for(stopped, f"{host} to freeze")

    def thaw(self, host: str) -> None:
        frozen = self._members(host)
        signal_each([*entrances(frozen), *frozen], signal.SIGCONT)

    def power_off(self, host: str) -> None:
        """Kill every process of a host at once. Its kernel still closes their connections, so that the
        other hosts notice: for a host that goes without a word, pull the cable first."""
        self._changed.add(host)
        self._stop([host])

    def start(self, host: str) -> None:
        """Switch on a host that is off: it has a new boot id, and /dev/shm and TMPDIR are empty."""
        if not self._is_on(host):
            self._stop([host])  # what is left of it, if nobody switched it off
            self._start([host])

    def renew(self) -> None:
        """Switch off and on again whatever host is not as it was after `up`; how a host is takes 1 ms to see.

        That is one whose network or power was changed here, and one that has processes or files left.
        """
        old = [host for host in self.names if host in self._changed or not self._is_untouched(host)]
        self._stop(old)
        self._start(old)

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes that each host that is on has sent and received since it was started."""
        return {host: bytes_sent_and_received(self._init(host)) for host in self.names if self._is_on(host)}

    def processes(self, host: str) -> list[tuple[int, str]]:
        """Number, as counted outside, and command line of a host's processes besides its sshd's."""
        found = []
        for pid in self._members(host):
            line = command_line(pid)
            if command_name(pid) not in SSHD and state(pid) not in "ZX":
                found.append((pid, line))
        return found

    def files(self, host: str, folder: str | Path = "/dev/shm") -> list[str]:
        """All paths below a folder as the host sees it, relative to it; none when the host is off."""
        if not self._is_on(host):
            return []
        top = f"/proc/{self._init(host)}/root{folder}"
        return sorted(
            os.path.relpath(os.path.join(place, name), top)
            for place, folders, files in os.walk(top)
            for name in (*folders, *files)
        )

    def _write_settings(self) -> None:
        self.temporary.mkdir()
        for key in ("key", "hostkey"):
            call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)])
        suffixes = ["", f".{self.domain}"] if self.domain else [""]
        lines = [
            " ".join([self.address(host), *(host + suffix for suffix in suffixes)]) for host in self.names
        ]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def _start(self, hosts: Sequence[str]) -> None:
        self._holders.update({host: self._boot(host) for host in hosts})
        for host in hosts:
            started = functools.partial(serves_ssh, self._holders[host])
            wait_for(started, f"{host} to start", self._holders[host], self.folder / f"{host}.log")
        self._plug_in(hosts)
        self._changed -= {*hosts}
        self._fresh.update({host: self._own_files(host) for host in hosts})

    def _is_untouched(self, host: str) -> bool:
        return self._is_on(host) and not self.processes(host) and self._own_files(host) == self._fresh[host]

    def _own_files(self, host: str) -> list[list[str]]:
        """Of all places that are a host's own; of /etc what was changed there."""
        return [self.files(host, place) for place in ("/dev/shm", self.temporary, "/run")]

    def _boot(self, host: str) -> subprocess.Popen[bytes]:
        sshd = shutil.which("sshd", path=PATH) or "sshd"  # it insists on its full path
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child=KILL", "--mount-proc"]
        return hold(
            [*unshare, "sh", str(BOOT), host, str(self.folder), self.shm, sshd], self.folder / f"{host}.log"
        )

    def _plug_in(self, hosts: Sequence[str]) -> None:
        """Connect each host's eth0 to the bridge; its hardware address is the same after every start."""
        for host in hosts:
            init, port, mac = self._init(host), self._port(host), f"02:00:00:00:00:{self._number(host):02x}"
            ip(
                self._switch,
                f"link add name {port} type veth peer name eth0 address {mac} netns {init}",
                f"link set dev {port} master br0 up",
            )
            ip(init, f"address add {self.address(host)}/24 dev eth0", "link set eth0 up", "link set lo up")

    def _stop(self, hosts: Sequence[str]) -> None:
        """Kill the init of each host, and the kernel kills the rest: all at once, then wait for all."""
        ending = [(host, self._holders.pop(host)) for host in hosts if host in self._holders]
        inits = [child(holder) for _, holder in ending]
        waiting = [entrances(members(init)) for init in inits]
        signal_each([init for init in inits if init], signal.SIGKILL)
        for init, (_, holder) in zip(inits, ending, strict=True):
            if not init:  # it was not up yet
                holder.kill()
        for (host, holder), outside in zip(ending, waiting, strict=True):
            wait_for(functools.partial(released, holder, outside), f"{host} to go off")
        # The kernel removes links later; a host that is started again wants their names now.
        ip(self._switch, *[f"link del dev {self._port(host)}" for host, _ in ending], check=False)

    def _is_on(self, host: str) -> bool:
        return host in self._holders and child(self._holders[host]) != 0

    def _init(self, host: str) -> int:
        """The host's PID 1."""
        if not self._is_on(host):
            raise HostsError(f"{host} is not on")
        return child(self._holders[host])

    def _members(self, host: str) -> list[int]:
        return members(self._init(host)) if self._is_on(host) else []

    def _number(self, host: str) -> int:
        return self.names.index(host) + 1

    def _port(self, host: str) -> str:
        return f"port{self._number(host)}"


@functools.cache
def problem() -> str | None:
    """Why this machine cannot have such hosts, in a sentence; None when it can: one has been up."""
    if os.geteuid() != 0:
        return "only root can make hosts in namespaces"
    if missing := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        return f"hosts in namespaces need {', '.join(missing)}, not installed here"
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        try:
            with Hosts(Path(folder) / "hosts", names=("n1",)) as hosts:
                hosts.rate("n1", "1mbit")
        except HostsError as reason:
            return f"this machine refuses hosts in namespaces: {reason}"
    return None


def inside(process: Process) -> int:
    """The number of the process on a host that a `command` started from here waits for."""
    return wait_for(functools.partial(child, process), "the command on the host", process)
