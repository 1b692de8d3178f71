"""What launchers really print, told apart from what ranks print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun.launch.supervise.launcher_output import (
    OutputFilter,
    ProcessEnd,
    no_space,
    process_ends,
    start_failure,
)

RULER = "-" * 74 + "\n"
BOX = "=" * 83 + "\n"
PMIX_ERROR = "[vm:20125] PMIX ERROR: PMIX_ERR_UNREACH in file pmix_server.c at line 3146\n"
OPEN_MPI_5_KILLED = (
    RULER
    + "prterun noticed that process rank 1 with PID 6410 on node vm exited on\nsignal 9 (Killed).\n"
    + RULER
)
OPEN_MPI_5_ABORT = f"""{RULER}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[61846,1],1]
  Errorcode: 7

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
You may or may not see output from other processes, depending on
exactly when Open MPI kills them.
{RULER}{RULER}prterun has exited due to process rank 1 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
{RULER}"""
OPEN_MPI_5_STATUS = f"""{RULER}prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-6461@1,2]
   Exit code:    3
{RULER}"""
OPEN_MPI_5_LEFT = f"""{RULER}prterun has exited due to process rank 1 with PID 28154 on node vm exiting
improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in the
job did. This can cause a job to hang indefinitely while it waits for
all processes to call "init". By rule, if one process calls "init",
then ALL processes must call "init" prior to termination.

2. this process called "init", but exited without calling "finalize".
By rule, all processes that call "init" MUST call "finalize" prior to
exiting or it will be considered an "abnormal termination"

3. this process called "MPI_Abort" or "prte_abort" and the mca
parameter prte_create_session_dirs is set to false. In this case, the
run-time cannot detect that the abort call was an abnormal
termination. Hence, the only error message you will receive is this
one.

This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).

You can avoid this message by specifying -quiet on the prterun command
line.
{RULER}"""
OPEN_MPI_4_KILLED = f"""{RULER}Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULER}{RULER}mpirun \
noticed that process rank 1 with PID 0 on node v exited on signal 11 (Segmentation fault).
{RULER}"""
OPEN_MPI_4_STATUS = f"""{RULER}mpirun \
detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[30518,1],1]
  Exit code:    3
{RULER}"""
OPEN_MPI_4_LOG = (
    "[vm:20460] [[8978,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file "
    "../../../orte/util/show_help.c at line 501\n"
)
OPEN_MPI_5_EVENT = (
    "[warn] Epoll MOD(4) on fd 21 failed. Old events were 6; read change was 2 (del); write change was 0 "
    "(none); close change was 0 (none): Bad file descriptor\n"
)
OPEN_MPI_5_NO_FOLDER = "[vm:00016] Error: Unable to get the current working directory\n"
MPICH_KILLED = f"""\n{BOX}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 6569 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
{BOX}YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
MPICH_CRASHED = MPICH_KILLED.replace("EXIT CODE: 9", "EXIT CODE: 11").replace(
    "Killed (signal 9)", "Segmentation fault (signal 11)"
)
MPICH_MERGED = MPICH_KILLED.replace("Killed (signal 9)", "Terminated (signal 15)")  # of SIGABRT and SIGKILL
MPICH_ABORT = (
    "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"
)
MPICH_NOT_STARTED = """\
Abort(337790351): Fatal error in internal_Init_thread: Other MPI error, error stack:
internal_Init_thread(71).: MPI_Init_thread(argc=(nil), argv=(nil), required=3, provided=0x7ffd2f607490) failed
MPII_Init_thread(289)....:
MPID_Init(549)...........:
MPIDI_UCX_init_local(245):
MPIDI_UCX_init_worker(86):  ucx function returned with failed status(ucx_init.c 86 MPIDI_UCX_init_worker \
No resources are available to initiate the operation)
"""
MPICH_INTERRUPTED = (
    "[mpiexec@vm] Sending Ctrl-C to processes as requested\n[mpiexec@vm] Press Ctrl-C again to force abort\n"
)
INTEL_KILLED = f"""\n{BOX}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 1234 RUNNING AT n1
=   KILLED BY SIGNAL: 9 (Killed)
{BOX}"""
MPICHS_KILL = ProcessEnd(None, 6569, "vm", signal=9, maybe_by_launcher=True)
SAMPLES = {
    name: value for name, value in globals().items() if name.startswith(("OPEN_MPI", "MPICH_", "INTEL"))
}

ORDINARY = (
    "hello from rank 0\n",
    "\n",
    "a table\n" + RULER + "rank  GB/s\n" + RULER + "0     12.5\n" + RULER,
    BOX + "=   results\n" + BOX,
    "Abort the mission, said the log\n",
    "This typically works\n",
    "MPID_Init(549)...: of another program\n",
    "[warn] Epoll is a word, said the log\n",
    "\r 45% ████      ",
    "-" * 74,
)


def passed(text: str, *, pieces: int = 1) -> tuple[str, str]:
    """What a filter lets through and what it withholds of `text`, fed in pieces of so many bytes."""
    noise_filter, data = OutputFilter(), text.encode()
    through = b"".join(noise_filter.feed(data[at : at + pieces]) for at in range(0, len(data), pieces))
    return (through + noise_filter.finish()).decode(), noise_filter.withheld.decode()


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_a_launchers_words_are_withheld(name: str, pieces: int) -> None:
    assert passed(SAMPLES[name], pieces=pieces) == ("", SAMPLES[name])
    assert passed("before\n" + SAMPLES[name] + "after\n", pieces=10_000) == ("before\nafter\n", SAMPLES[name])


@given(st.lists(st.sampled_from(ORDINARY)), st.integers(1, 200))
def test_what_ranks_print_passes_unchanged(texts: list[str], pieces: int) -> None:
    assert passed("".join(texts), pieces=pieces) == ("".join(texts), "")


@pytest.mark.parametrize("name", SAMPLES)
def test_noise_is_found_between_ordinary_output(name: str) -> None:
    for text in ORDINARY[:5]:
        assert passed(text + SAMPLES[name] + text, pieces=10_000) == (text + text, SAMPLES[name])


def test_a_progress_bar_is_not_held_back() -> None:
    noise_filter = OutputFilter()
    assert noise_filter.feed("\r 45% ████".encode()) == "\r 45% ████".encode()


def test_a_banner_behind_a_progress_bar_is_withheld() -> None:
    assert passed("\r 45%" + OPEN_MPI_5_KILLED, pieces=10_000) == ("\r 45%", OPEN_MPI_5_KILLED)


def test_a_ranks_sentence_inside_a_banner_passes() -> None:
    before, after = OPEN_MPI_5_KILLED.split("signal 9")
    mixed = f"{before}meshrun: [rank 0] no good\nsignal 9{after}"
    assert passed(mixed, pieces=10_000)[0] == "meshrun: [rank 0] no good\n"


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_a_launchers_line_between_a_ruler_and_its_banner_is_withheld(pieces: int) -> None:
    """Another thread of Open MPI's launcher writes it."""
    rest = OPEN_MPI_5_STATUS.removeprefix(RULER)
    text = f"before\n{RULER}{PMIX_ERROR}{rest}after\n"
    assert passed(text, pieces=pieces) == ("before\nafter\n", PMIX_ERROR + OPEN_MPI_5_STATUS)


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
@pytest.mark.parametrize("before", [RULER, "\n", "results\n"])
def test_output_before_a_launchers_line_passes(before: str, pieces: int) -> None:
    assert passed(f"{before}{PMIX_ERROR}after\n", pieces=pieces) == (f"{before}after\n", PMIX_ERROR)


def test_a_banner_that_never_closes_is_shown() -> None:
    text = RULER + "Primary job  terminated normally, but 1 process returned\n" + "words of a rank\n" * 100
    assert passed(text, pieces=10_000) == (text, "")


def test_the_zero_byte_after_a_banner_is_dropped() -> None:
    assert passed(OPEN_MPI_5_ABORT + "\0", pieces=10_000) == ("", OPEN_MPI_5_ABORT)
    assert passed("\0", pieces=10_000) == ("\0", "")


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 40, 10_000])
def test_a_banner_behind_the_zero_byte_of_another_is_withheld(pieces: int) -> None:
    """Also if the text is cut within its ruler."""
    assert passed(f"{OPEN_MPI_5_ABORT}\0{OPEN_MPI_5_ABORT}\0", pieces=pieces) == ("", 2 * OPEN_MPI_5_ABORT)


@pytest.mark.parametrize(
    ("noise", "end"),
    [
        (OPEN_MPI_5_KILLED, ProcessEnd(1, 6410, "vm", signal=9)),
        (OPEN_MPI_4_KILLED, ProcessEnd(1, 0, "v", signal=11)),
        (OPEN_MPI_5_STATUS, ProcessEnd(2, status=3)),
        (OPEN_MPI_5_LEFT, ProcessEnd(1, 28154, "vm")),
        (OPEN_MPI_4_STATUS, ProcessEnd(1, status=3)),
        (MPICH_KILLED, MPICHS_KILL),
        (MPICH_CRASHED, ProcessEnd(None, 6569, "vm", signal=11)),
        (MPICH_MERGED.replace("CODE: 9", "CODE: 6"), ProcessEnd(None, 6569, "vm", signal=6)),
        (MPICH_KILLED.replace("CODE: 9", "CODE: 8"), MPICHS_KILL),  # an exit status
        (MPICH_MERGED, ProcessEnd(host="vm", signal=15, signals=(6, 7, 15))),
        (
            MPICH_MERGED.replace("15", "11"),
            ProcessEnd(host="vm", signal=11, signals=(11, 2, 3)),
        ),
        (INTEL_KILLED, ProcessEnd(1, 1234, "n1", signal=9)),
    ],
)
def test_a_processs_end_is_read(noise: str, end: ProcessEnd) -> None:
    assert process_ends(noise) == [end]


@pytest.mark.parametrize("noise", ["", OPEN_MPI_5_ABORT, MPICH_ABORT, MPICH_INTERRUPTED])
def test_no_end_is_read_where_none_is_told(noise: str) -> None:
    assert process_ends(noise) == []


def test_why_mpich_could_not_start_is_read() -> None:
    assert start_failure(MPICH_NOT_STARTED + MPICH_KILLED) == (
        "ucx function returned with failed status(ucx_init.c 86 MPIDI_UCX_init_worker "
        "No resources are available to initiate the operation)"
    )
    assert start_failure(MPICH_NOT_STARTED.splitlines()[0]) == "no reason given"
    assert start_failure(MPICH_KILLED) is None


def test_a_signal_comes_before_a_status() -> None:
    assert [end.signal for end in process_ends(OPEN_MPI_5_STATUS + OPEN_MPI_5_KILLED)] == [9, None]


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_the_empty_line_before_a_banner_is_part_of_it(pieces: int) -> None:
    """MPICH's begins with one, on standard output, where a monitor reads the first line."""
    noise_filter = OutputFilter()
    text = f"first\n\n{BOX}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n{BOX}".encode()
    passed = b"".join(noise_filter.feed(text[at : at + pieces]) for at in range(0, len(text), pieces))
    assert passed + noise_filter.finish() == b"first\n"


def test_other_empty_lines_pass() -> None:
    noise_filter = OutputFilter()
    assert noise_filter.feed(b"a\n\n\nb") == b"a\n\n\nb"
    assert (
        noise_filter.feed(b"\n\n" + RULER.encode() + b"a table\n") == b"\n\n" + RULER.encode() + b"a table\n"
    )
    assert noise_filter.feed(b"\n") == b""
    assert noise_filter.finish() == b"\n"


SEGFAULT = b"""\
[vm:25460] *** Process received signal ***
[vm:25460] Signal: Segmentation fault (11)
[vm:25460] Signal code: Address not mapped (1)
[vm:25460] Failing at address: (nil)
[vm:25460] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7fdd3845a050]
[vm:25460] [10] /lib/libpython3.11.so.1.0(+0x250a40)[0x7fdd38850a40]
[vm:25460] *** End of error message ***
"""
NO_ROOM = b"""\
--------------------------------------------------------------------------
It appears as if there is not enough space for /dev/shm/sm_segment.vm.0.6820001.1 (the shared-memory backing
file). It is likely that your MPI job will now either abort or experience
performance degradation.

  Local host:  vm
  Space Requested: 16777216 B
  Space Available: 1048576 B
--------------------------------------------------------------------------
"""
FILE_LIMIT = b"""\
--------------------------------------------------------------------------
A system call failed during shared memory initialization that should
not have.  It is likely that your MPI job will now either abort or
experience performance degradation.

  Local host:  vm
  System call: ftruncate(2) 
  Error:       File too large (errno 27)
--------------------------------------------------------------------------
"""  # noqa: W291
DISCONNECTED = b"""\
--------------------------------------------------------------------------
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: n3
  Local PID:  52
  Peer host:  n2
--------------------------------------------------------------------------
[n3:00000] *** An error occurred in Socket closed
"""


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(
    "text",
    [SEGFAULT, NO_ROOM, FILE_LIMIT, DISCONNECTED],
    ids=["segmentation fault", "full /dev/shm", "limit of files", "disconnected"],
)
def test_what_open_mpi_says_of_a_rank_is_withheld(text: bytes, size: int) -> None:
    output_filter = OutputFilter()
    whole = b"of a rank\n" + text + b"[not: mine] 5\n"
    passed = b"".join(output_filter.feed(whole[at : at + size]) for at in range(0, len(whole), size))
    rest = output_filter.finish()
    assert passed + rest == b"of a rank\n[not: mine] 5\n"
    assert output_filter.withheld == text


def test_a_full_shared_memory_is_told_in_numbers() -> None:
    told = no_space(NO_ROOM.decode())
    assert told == "/dev/shm on vm has 1,048,576 bytes free, and MPI needs 16,777,216 for each rank"
    assert no_space(SEGFAULT.decode()) is None
