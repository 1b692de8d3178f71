"""Whether the hosts of a spec answer by ssh, have this Python, with which MPI, and how they are reached."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from launch.mpi.library import ASK, Library, parse_library
from launch.spec import LaunchSpec

TIMEOUT = 30.0  # seconds that a host may take to answer: its sshd may just be starting
ATTEMPT = 5  # seconds for one connection
PAUSE = 0.5  # seconds between two
IMPORT = 10  # seconds for Python to tell its MPI: it may be read from a slow file system for the first time
CHOOSING = ("LD_LIBRARY_PATH", "MPI4PY_")  # variables by which it is chosen
CLEANUP_TIMEOUT = 10.0  # seconds that a host has to be cleaned up
AT_ONCE = 128  # hosts asked at the same time
# Where the answer begins, after what a login shell may print; whether the program is there; the MPI that it
# loads; the interface with the address by which this host was reached; all of them.
BEGIN = "meshrun-host"
SCRIPT = """\
echo {begin}
test -x {python} && echo python || echo none
echo $({variables} timeout {seconds} {python} -c {ask} 2>/dev/null)
set -- $SSH_CONNECTION
echo $(ip -o addr show to "$3" 2>/dev/null | head -n 1 | cut -d ' ' -f 2)
echo $(cut -s -d : -f 1 /proc/net/dev)
"""
NO_ROUTE = 255  # ssh's own exit status


@dataclass(frozen=True)
class HostProbe:
    """What a host said. interface: None on this machine, "" where it could not tell."""

    host: str
    mpi: Library | None
    interface: str | None


def probe_hosts(spec: LaunchSpec, python: str, timeout: float = TIMEOUT) -> list[HostProbe]:
    """All hosts' answers, asked at the same time; UserError names those that gave none, or lack Python."""
    from runner.errors import UserError

    if shutil.which("ssh") is None:
        raise UserError(
            "other hosts are reached by ssh, and there is none",
            hint="apt-get install openssh-client, or the site's batch system",
        )
    variables = {**os.environ, **spec.settings}  # as ranks there get them
    script = SCRIPT.format(
        begin=BEGIN,
        variables=" ".join(f"{n}={shlex.quote(v)}" for n, v in variables.items() if n.startswith(CHOOSING)),
        seconds=IMPORT,
        python=shlex.quote(python),
        ask=shlex.quote(ASK),
    )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda host: _probe(host, script, timeout), spec.names))
    silent = {host: said for host, said in zip(spec.names, found, strict=True) if isinstance(said, str)}
    if silent:
        raise UserError(
            f"no answer by ssh from {', '.join(f'{host} ({said})' for host, said in silent.items())}",
            expected=f"ssh {next(iter(silent))} true, without a password, within {timeout:g} s",
            hint="ssh-copy-id, or the host's name, power and firewall",
        )
    answered = {host: said for host, said in zip(spec.names, found, strict=True) if not isinstance(said, str)}
    lacking = [host for host, lines in answered.items() if lines[0] != "python"]
    if lacking:
        raise UserError(
            f"{python} is not there on {', '.join(lacking)}",
            expected="the same Python environment at the same path on every host",
            hint="a shared file system, or the same installation everywhere",
        )
    if spec.network is not None:
        without = [host for host, lines in answered.items() if spec.network not in lines[3].split()]
        if without:
            raise UserError(
                f"there is no network interface {spec.network} on {', '.join(without)}",
                expected=f"one of {', '.join(answered[without[0]][3].split())}",
                hint="--network, or none for the route to the hosts",
            )
    return [
        HostProbe(host, parse_library(lines[1]), None if is_local(host) else lines[2])
        for host, lines in answered.items()
    ]


def _probe(host: str, script: str, timeout: float) -> list[str] | str:
    """The lines that the script prints there, or the last reason why not."""
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            done = subprocess.run(
                ["sh", "-s"] if is_local(host) else _ssh(host, "sh -s"),  # whatever the login shell is
                input=script,
                capture_output=True,
                text=True,
                timeout=max(left, ATTEMPT) + IMPORT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "connected, and said nothing"
        lines = done.stdout.split("\n")
        if done.returncode == 0 and BEGIN in lines:
            return [*lines[lines.index(BEGIN) + 1 :], "", "", "", ""]
        said = done.stderr.strip() or done.stdout.strip() or "no reason given"
        reason = said.splitlines()[-1].strip()
        if done.returncode != NO_ROUTE or is_permanent(reason) or time.monotonic() + PAUSE > deadline:
            return reason
        time.sleep(PAUSE)


def _ssh(host: str, command: str) -> list[str]:
    # Without the brackets around an IPv6 address, which launchers need.
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={ATTEMPT}"]
    return ["ssh", *options, host.strip("[]"), command]


def run_on_others(names: Sequence[str], words: Sequence[str], timeout: float = CLEANUP_TIMEOUT) -> list[str]:
    """Run a command on all other hosts at the same time; those that do not do it in time."""

    def run(host: str) -> bool:
        ssh = _ssh(host, shlex.join(words))
        try:
            done = subprocess.run(
                ssh, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    others = [host for host in names if not is_local(host)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        swept = list(pool.map(run, others))
    return [host for host, done in zip(others, swept, strict=True) if not done]


def is_permanent(reason: str) -> bool:
    """Whether waiting would not help: the name or the key is wrong, not the host late."""
    return any(
        words in reason
        for words in ("Could not resolve", "Permission denied", "Host key verification", "Bad configuration")
    )


def common_interface(found: Sequence[HostProbe]) -> str | None:
    """The interface that all other hosts are reached by; None where they differ, cannot tell, or it is lo."""
    names = {answer.interface for answer in found if answer.interface is not None}
    name = names.pop() if len(names) == 1 else None
    return None if name in ("", "lo") else name


def is_local(host: str) -> bool:
    """Whether `host` is this machine by name."""
    return host.rpartition("@")[2] in (
        "localhost",
        os.uname().nodename,
        os.uname().nodename.partition(".")[0],
    )
