"""Ask NCCL's RAS, a thread in every process of a job that knows how far all ranks are, what is wrong.

Since NCCL 2.24 it listens on this host, at NCCL_RAS_ADDR. The protocol is lines of text: "TIMEOUT seconds" is
answered by "OK", "STATUS" by a report, behind which the connection is closed (NCCL's user guide, "RAS";
src/ras/client_support.cc). Since 2.31, "DIAGNOSTICS" is answered by what differs between the ranks' GPUs,
drivers and variables, and by GPUs with uncorrected errors or NVLinks that are down. Processes of several jobs
may share an address and take each other's questions, so that every run gets one of its own.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from meshrun.runner.errors import first_line, printable
from meshrun.runner.system.launcher import environment

ADDRESS, ENABLED = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
PORTS = (20000, 8000)  # the first one, and how many: below those that Linux gives to clients
TIMEOUT = 2.0  # seconds for the whole question
MOST_BYTES, MOST_LINES = 1 << 20, 16
HEADINGS = ("Errors", "Warnings")  # of the report, each underlined
VERSION = re.compile(r"NCCL version (\d+)\.(\d+)\.(\d+)")
DIAGNOSES = 23100  # the first version that does
DIAGNOSED = re.compile(r" NCCL DIAG \[(\w+)\] +(.*)")


@dataclass(frozen=True)
class NcclDiagnostics:
    """Sentences of NCCL: on what it has found to be right, and on all else."""

    passed: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


def address_of(run_id: str) -> str:
    """Return the address of a run whose user has chosen none."""
    first, count = PORTS
    return f"localhost:{first + int(run_id, 16) % count}"


def place(run_id: str) -> str | None:
    """Return where the RAS of this process's run listens; None if the user has switched it off."""
    given = environment()
    return None if given.get(ENABLED) == "0" else given.get(ADDRESS) or address_of(run_id)


def findings(address: str) -> list[str]:
    """Return what NCCL reports of a run, as lines for a person; none if nothing listens there."""
    try:
        text = asked(address, "STATUS")
    except ConnectionRefusedError:
        return []  # an NCCL without RAS, or no NCCL
    except (OSError, ValueError) as reason:
        return [f"NCCL's RAS at {address} does not answer: {first_line(reason)}"]
    lines = quoted(text)
    if not lines:
        told = [f"NCCL's RAS at {address} reports no errors and no warnings"]
    else:
        told = [f"NCCL's RAS at {address} reports:", *_indented(lines)]
    version = VERSION.search(text)
    if version and int(version[1]) * 10000 + int(version[2]) * 100 + int(version[3]) >= DIAGNOSES:
        found = diagnostics(address).found
        told += ["NCCL's diagnostics find:", *_indented(found)] if found else []
    return told


def _indented(lines: Sequence[str]) -> list[str]:
    more = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return [f"  {line}" for line in [*lines[:MOST_LINES], *more]]


def diagnostics(address: str) -> NcclDiagnostics:
    """Return what an NCCL of version DIAGNOSES or later finds; in `found` also that it does not answer."""
    try:
        text = printable(asked(address, "DIAGNOSTICS"))
        results = [match.groups() for line in text.splitlines() if (match := DIAGNOSED.search(line))]
        if not results:
            raise ValueError(f"it answers {text[:80]!r}")
    except (OSError, ValueError) as reason:
        return NcclDiagnostics(found=(f"NCCL's RAS at {address} does not answer: {first_line(reason)}",))
    passed = tuple(sentence for mark, sentence in results if mark == "OK")
    return NcclDiagnostics(passed, tuple(sentence for mark, sentence in results if mark != "OK"))


def asked(address: str, question: str) -> str:
    """Return the answer to a question. Raises OSError, and ValueError for what is no answer of RAS."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + TIMEOUT
    with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT) as connection:
        connection.sendall(f"TIMEOUT {TIMEOUT:.0f}\n".encode())
        found = b""
        while b"\n" not in found:
            found += _received(connection, until)
        answer, _, found = found.partition(b"\n")
        if answer.strip() != b"OK":
            raise ValueError(f"it answers {printable(answer.strip()[:80].decode(errors='replace'))!r}")
        connection.sendall(f"{question}\n".encode())
        while (some := _received(connection, until, ends=True)) and len(found) < MOST_BYTES:
            found += some
    return found.decode(errors="replace")


def _received(connection: socket.socket, until: float, *, ends: bool = False) -> bytes:
    """Return the next bytes; none at the end, which is an error unless `ends`."""
    connection.settimeout(max(until - time.monotonic(), 0.001))
    some = connection.recv(65536)
    if not some and not ends:
        raise ConnectionError("it has closed the connection")
    return some


def quoted(text: str) -> list[str]:
    """Return the lines below the headings for errors and warnings."""
    lines, found, inside = printable(text).splitlines(), list[str](), False
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if below and set(below) == {"="}:
            inside = line.split(" ")[0] in HEADINGS
        elif inside and line.strip() and set(line) != {"="}:
            found.append(line.rstrip())
    return found
