"""Separate a launcher's own messages from the output of the ranks.

When a rank fails, launchers print banners around its message: "Primary job terminated normally, but
1 process returned a non-zero exit code", "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES".
They are withheld, parsed for how each rank ended, and shown only if there is no better information.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGINT, SIGKILL, SIGQUIT, SIGSEGV, SIGTERM

RULER = re.compile(rb"(-{70,}|={70,})\r?\n$")
# Text after the ruler of a launcher's banner, as opposed to a ruler in a program's own table.
BANNER = re.compile(
    rb"\w+ (noticed that (process|the job)|detected that one or more|has exited due to process)"
    rb"|Primary job +terminated normally"
    rb"|MPI_ABORT was invoked on rank"
    rb"|= +BAD TERMINATION OF ONE OF YOUR"
    # Of Open MPI's library in a rank, when MPI cannot start.
    rb"|It appears as if there is not enough space for /"
    rb"|A system call failed during shared memory initialization"
    rb"|At least one pair of MPI processes are unable to reach each other"
    rb"|MPI_INIT has failed because at least one MPI process is unreachable"
    rb"|It looks like MPI_INIT failed for some reason"
    # Of the other ranks, when one has died.
    rb"|An MPI communication peer process has unexpectedly disconnected"
)
LONGEST_BANNER = 60  # lines; Open MPI's longest has 24
LINE = re.compile(
    rb"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: "
    rb"|This typically refers to a problem with your application\."
    rb"|Please see the FAQ page for debugging suggestions"
    rb"|Abort\(-?\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort"
    rb"|Abort is in progress\.\.\.hit ctrl-c again"
    rb"|\[(mpiexec|proxy:\S+)@\S+\] "
    rb"|\[warn\] Epoll \w+\(\d+\) on fd \d+ failed\."  # Open MPI's libevent, when a rank's pipe is closed
    rb"|\[\S+:\d+\] (\[\[\d+,\d+\],\d+\] )?(ORTE_ERROR_LOG|PRTE ERROR|PMIX ERROR)"
    rb"|\[\S+:\d+\] Error: Unable to get the current "  # working directory, which has been removed
    # Open MPI's report of a signal or an error in a rank.
    rb"|\[\S+:\d+\] (\*\*\*|Signal: |Signal code: |Failing at address: |\[ ?\d+\] )"
)
# Of MPICH's library in a rank, when MPI cannot start: a line, and then its stack, the innermost call last.
START_FAILURE = re.compile(rb"Abort\(-?\d+\): Fatal error in internal_Init\w*: ")
CALL = re.compile(rb"(internal_|MPI|PMI)\w*\(\d+\)\.*: *(?P<reason>.*)")
HOST_AND_PROCESS = re.compile(rb"\[[\w.-]*(:\d*(\].{0,40})?)?")  # "[n1:4711] [[8978,0],0] ORTE_E"
LINE_STARTS = (b"YOUR APPL", b"This typ", b"Please see", b"Abort", b"[mpiexec", b"[proxy", b"[warn] Epoll")

# Launchers' reports of the end of one process, with white space normalised.
ENDS = (
    # Open MPI. Version 4 reports PID 0.
    re.compile(
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) "
        r"exited on signal (?P<signal>\d+)"
    ),
    re.compile(r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exiting improperly"),
    re.compile(r"Process name: \[\S+,(?P<rank>\d+)\] Exit code: (?P<status>\d+)"),
    # Intel MPI
    re.compile(
        r"= RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<host>\S+) = KILLED BY SIGNAL: (?P<signal>\d+)"
    ),
    # MPICH
    re.compile(
        r"= PID (?P<pid>\d+) RUNNING AT (?P<host>\S+) = EXIT CODE: (?P<code>\d+) .*?"
        r"TERMINATED WITH THE EXIT STRING: [^()]*\(signal (?P<signal>\d+)\)"
    ),
)


FATAL = (SIGABRT, SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTERM, SIGINT, SIGQUIT)  # the likely ends of a rank

NO_SPACE = re.compile(
    r"not enough space for (?P<folder>/\S*)/\S+ .*?Local host: (?P<host>\S+) "
    r"Space Requested: (?P<needed>\d+) B Space Available: (?P<free>\d+) B"
)
UNREACHABLE = "At least one pair of MPI processes are unable to reach each other"

AS_ROOT = "has detected an attempt to run as root"


def refuses_root(text: str) -> bool:
    """Whether Open MPI says that it starts nothing as root."""
    return AS_ROOT in text


def no_space(text: str) -> str | None:
    """Which folder of which host is too full for MPI's shared memory; None if Open MPI does not say so."""
    match = NO_SPACE.search(" ".join(text.split()))
    if match is None:
        return None
    where, needed, free = f"{match['folder']} on {match['host']}", int(match["needed"]), int(match["free"])
    return f"{where} has {free:,} bytes free, and MPI needs {needed:,} for each rank"


def start_failure(text: str) -> str | None:
    """Why MPICH could not start, in its own words; None if it does not say so."""
    lines = text.encode().splitlines()
    if not any(START_FAILURE.match(line) for line in lines):
        return None
    reasons = [found["reason"].decode() for line in lines if (found := CALL.match(line))]
    return next((reason for reason in reversed(reasons) if reason), "no reason given")


def unreachable(text: str) -> bool:
    """Whether Open MPI says that its ranks cannot reach each other: it cannot start."""
    return UNREACHABLE in text


@dataclass(frozen=True)
class ProcessEnd:
    """How one process of a run ended; None for what the launcher did not report.

    maybe_by_launcher: when a rank dies, MPICH's launcher kills the others, and then reports the
    first that was killed, by itself or not. signals: the signal is one of these, and the process unknown:
    MPICH's launcher reports the bitwise OR of all ends.
    """

    rank: int | None = None
    pid: int | None = None
    host: str | None = None
    signal: int | None = None
    status: int | None = None
    maybe_by_launcher: bool = False
    signals: tuple[int, ...] = ()


def process_ends(text: str) -> list[ProcessEnd]:
    """The processes named in a launcher's messages, those killed by a signal first."""
    text = " ".join(text.split())
    found = [_process_end(match.groupdict()) for pattern in ENDS for match in pattern.finditer(text)]
    return sorted(found, key=lambda end: end.signal is None)


def _process_end(fields: dict[str, str | None]) -> ProcessEnd:
    numbers = {name: int(value) for name, value in fields.items() if name != "host" and value is not None}
    merged, code = numbers.get("signal", 0), numbers.get("code")
    possible = tuple(int(number) for number in FATAL if number | SIGKILL == merged)
    if merged != SIGKILL and code in possible:
        numbers["signal"] = code
    elif code == SIGKILL != merged:
        return ProcessEnd(host=fields["host"], signal=merged, signals=possible or (merged,))
    return ProcessEnd(
        numbers.get("rank"),
        numbers.get("pid"),
        fields.get("host"),
        numbers.get("signal"),
        numbers.get("status"),
        maybe_by_launcher="rank" not in fields and numbers.get("signal") == SIGKILL,
    )


class OutputFilter:
    """Filter of one stream of a launcher, in chunks of any size. `withheld`: the launcher's own messages.

    Everything else passes immediately, even unfinished lines, because a progress bar has no newline.
    """

    def __init__(self) -> None:
        self.withheld = b""
        self._pending = b""  # an unfinished line that may be the launcher's
        self._ruler = b""  # an empty line or a ruler, or both, that may open a banner
        self._banner = b""  # an unfinished banner
        self._in_stack = False  # behind the first line of MPICH's

    def feed(self, chunk: bytes) -> bytes:
        """The part of `chunk`, and of withheld text before it, that comes from the ranks."""
        *lines, rest = (self._pending + chunk).split(b"\n")
        passed = b"".join(self._judge(line + b"\n") for line in lines)
        if self._may_be_launchers(rest):
            self._pending = rest
            return passed
        blank, self._ruler, self._pending = self._ruler, b"", b""
        return passed + blank + self._without_nul(rest)

    def finish(self) -> bytes:
        """The text withheld at the end of the stream."""
        rest = self._banner + self._ruler + self._without_nul(self._pending)
        self._banner = self._ruler = self._pending = b""
        return rest

    def _judge(self, line: bytes) -> bytes:
        if self._banner:
            return self._judge_in_banner(line)
        line = self._without_nul(line)
        ruler, self._ruler = self._ruler, b""
        if ruler.strip() and BANNER.match(line):
            self._banner = ruler + line
            return b""
        self._in_stack = bool(START_FAILURE.match(line) or (self._in_stack and CALL.match(line)))
        if self._in_stack or LINE.match(line):
            self.withheld += line
            self._ruler = ruler  # the launcher's threads write lines between those of a banner
            return b""
        if line == b"\n":
            self._ruler = line
            return ruler
        if opening := RULER.search(line):
            blank = (
                ruler if ruler == b"\n" and line.startswith(b"=") else b""
            )  # MPICH's banner begins with it
            self._ruler = blank + line[opening.start() :]
            return ruler.removeprefix(blank) + line[: opening.start()]
        return ruler + line

    def _judge_in_banner(self, line: bytes) -> bytes:
        if line.startswith(b"meshrun: "):  # from a rank, in between
            return line
        self._banner += line
        if RULER.match(line) and line[:1] == self._banner.lstrip()[:1]:
            self.withheld += self._banner
            self._banner = b""
        elif self._banner.count(b"\n") > LONGEST_BANNER:
            return self.finish()
        return b""

    def _may_be_launchers(self, rest: bytes) -> bool:
        rest = self._without_nul(rest)
        return bool(
            self._banner
            or self._in_stack
            or self._ruler.strip()
            or not rest.strip(b"-")
            or not rest.strip(b"=")
            or LINE.match(rest)
            or HOST_AND_PROCESS.fullmatch(rest)
            or any(rest.startswith(start) or start.startswith(rest) for start in LINE_STARTS)
        )

    def _without_nul(self, text: bytes) -> bytes:
        # Open MPI 5 ends its banners with a zero byte.
        return text.lstrip(b"\0") if self.withheld else text
