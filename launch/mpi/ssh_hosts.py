"""Probe hosts by ssh: whether they answer and have this Python, its MPI library, and their interface."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from meshrun.launch.mpi.launcher import Vendor
from meshrun.launch.mpi.library import QUERY, Library, parse_library
from meshrun.launch.spec import LaunchSpec

TIMEOUT = 30.0  # seconds for a host to answer: its sshd may be starting
ATTEMPT = 5  # seconds for one connection
PAUSE = 0.5  # seconds between two connections
IMPORT = 10  # seconds for Python to load MPI, possibly from a slow file system
CHOOSING = ("LD_LIBRARY_PATH", "MPI4PY_")  # variables that select the MPI library
CLEANUP_TIMEOUT = 10.0  # seconds to clean up a host
AT_ONCE = 128  # hosts probed at the same time
# Prints: the start of the answer, after any output of a login shell; whether Python exists; the MPI library
# that it loads; the interface with the address at which this host was reached; all interfaces; the host's own
# name and the id of its boot.
BEGIN = "meshrun-host"
SCRIPT = """\
echo {begin}
test -x {python} && echo python || echo none
echo $({variables} timeout {seconds} {python} -c {query} 2>/dev/null)
set -- $SSH_CONNECTION
echo $(ip -o addr show to "$3" 2>/dev/null | head -n 1 | cut -d ' ' -f 2)
echo $(cut -s -d : -f 1 /proc/net/dev)
echo $(uname -n)
echo $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
"""
ADDRESS = re.compile(r"[\d.]+")  # IPv4
NO_ROUTE = 255  # ssh's own exit status


@dataclass(frozen=True)
class HostProbe:
    """The result for one host. interface: None on this machine, "" if unknown. name: by which the host knows
    itself. boot: the id of its boot, "" if unknown."""

    host: str
    mpi: Library | None
    interface: str | None
    name: str = ""
    boot: str = ""


def probe_hosts(spec: LaunchSpec, python: str, timeout: float = TIMEOUT) -> list[HostProbe]:
    """Probe all hosts at the same time. Raises UserError with the hosts that do not answer or lack Python."""
    from meshrun.runner.errors import UserError

    if shutil.which("ssh") is None:
        raise UserError(
            "no ssh on PATH, which is needed to reach other hosts",
            hint="apt-get install openssh-client, or use the site's batch system",
        )
    variables = {**os.environ, **spec.settings}  # as for ranks there
    script = SCRIPT.format(
        begin=BEGIN,
        variables=" ".join(f"{n}={shlex.quote(v)}" for n, v in variables.items() if n.startswith(CHOOSING)),
        seconds=IMPORT,
        python=shlex.quote(python),
        query=shlex.quote(QUERY),
    )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda host: _probe(host, script, timeout), spec.names))
    silent = {host: result for host, result in zip(spec.names, found, strict=True) if isinstance(result, str)}
    if silent:
        raise UserError(
            f"no answer by ssh from {', '.join(f'{host} ({result})' for host, result in silent.items())}",
            expected=f"ssh {next(iter(silent))} true, without a password, within {timeout:g} s",
            hint="run ssh-copy-id; check the host's name, power and firewall",
        )
    answered = {
        host: result for host, result in zip(spec.names, found, strict=True) if not isinstance(result, str)
    }
    without_python = [host for host, lines in answered.items() if lines[0] != "python"]
    if without_python:
        raise UserError(
            f"{python} does not exist on {', '.join(without_python)}",
            expected="the same Python environment at the same path on every host",
            hint="use a shared file system, or install it at the same path everywhere",
        )
    if spec.network is not None:
        without = [host for host, lines in answered.items() if spec.network not in lines[3].split()]
        if without:
            raise UserError(
                f"there is no network interface {spec.network} on {', '.join(without)}",
                expected=f"one of {', '.join(answered[without[0]][3].split())}",
                hint="--network with one of these, or without it to use the route to the hosts",
            )
    return [
        HostProbe(host, parse_library(lines[1]), None if is_local(host) else lines[2], lines[4], lines[5])
        for host, lines in answered.items()
    ]


def check_names(found: Sequence[HostProbe], vendor: Vendor) -> None:
    """Raise UserError for a host under two names, and for hosts that the launcher takes for one host.

    vendor: the launcher's. Open MPI knows hosts by their names up to the first dot.
    """
    from meshrun.runner.errors import UserError

    if same := _alike((probe.host, f"{probe.name}/{probe.boot}" if probe.boot else "") for probe in found):
        names, identity = same
        raise UserError(
            f"{' and '.join(names)} are the same host, {identity.partition('/')[0]}",
            hint=f"list each host once, with all its ranks, such as -j 1x{len(names)} --hosts {names[-1]}",
        )
    if vendor != "Open MPI":
        return
    if same := _alike((probe.host, short_name(probe.name)) for probe in found):
        names, name = same
        raise UserError(
            f"{' and '.join(names)} are different hosts, both named {name}: Open MPI cannot tell them apart",
            hint="hostnamectl set-hostname on one of them, to a name that differs before the first dot",
        )
    if same := _alike((probe.host, short_name(probe.host)) for probe in found):
        names, name = same
        raise UserError(
            f"{' and '.join(names)} are one host to Open MPI, {name}: it ignores what follows the first dot",
            hint="names that differ before the first dot, or the hosts' IPv4 addresses",
        )


def _alike(hosts: Iterable[tuple[str, str]]) -> tuple[list[str], str] | None:
    """The first hosts with the same key, and the key; None if there are none. A key of "" equals no other."""
    groups: dict[str, list[str]] = {}
    for host, key in hosts:
        groups.setdefault(key, []).append(host)
    return next(((names, key) for key, names in groups.items() if key and len(names) > 1), None)


def short_name(host: str) -> str:
    """A host's name up to the first dot, without a user; an address as a whole."""
    name = host.rpartition("@")[2]
    return name if ADDRESS.fullmatch(name) else name.partition(".")[0]


def _probe(host: str, script: str, timeout: float) -> list[str] | str:
    """The lines that the script prints on the host, or the reason why it failed."""
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            done = subprocess.run(
                ["sh", "-s"] if is_local(host) else _ssh(host, "sh -s"),  # for any login shell
                input=script,
                capture_output=True,
                text=True,
                errors="replace",  # of a login shell's greeting
                timeout=max(left, ATTEMPT) + IMPORT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "connected, but no answer"
        lines = done.stdout.split("\n")
        if done.returncode == 0 and BEGIN in lines:
            return [*lines[lines.index(BEGIN) + 1 :], *[""] * 6]
        message = done.stderr.strip() or done.stdout.strip() or "no reason given"
        reason = message.splitlines()[-1].strip()
        if done.returncode != NO_ROUTE or is_permanent(reason) or time.monotonic() + PAUSE > deadline:
            return reason
        time.sleep(PAUSE)


def _ssh(host: str, command: str) -> list[str]:
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ATTEMPT}", host, command]


def run_on_others(names: Sequence[str], words: Sequence[str], timeout: float = CLEANUP_TIMEOUT) -> list[str]:
    """Run a command on all other hosts at the same time; returns those on which it failed."""

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
        results = list(pool.map(run, others))
    return [host for host, done in zip(others, results, strict=True) if not done]


def is_permanent(reason: str) -> bool:
    """Whether retrying is useless, because the name or the key is wrong."""
    return any(
        words in reason
        for words in ("Could not resolve", "Permission denied", "Host key verification", "Bad configuration")
    )


def common_interface(found: Sequence[HostProbe]) -> str | None:
    """The interface of all other hosts; None if they differ, one is unknown, or it is lo."""
    names = {answer.interface for answer in found if answer.interface is not None}
    name = names.pop() if len(names) == 1 else None
    return None if name in ("", "lo") else name


def is_local(host: str) -> bool:
    """Whether `host` is a name of this machine."""
    return host.rpartition("@")[2] in (
        "localhost",
        os.uname().nodename,
        os.uname().nodename.partition(".")[0],
    )
