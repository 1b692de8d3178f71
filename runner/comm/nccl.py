"""Load NCCL, report its version, and open one rank's communicator. The only importer of NCCL's bindings.

Uses the low-level bindings of NVIDIA's nccl4py, which take raw pointers and cost under 0.1 us per call.
CuPy's `cupy.cuda.nccl` is as fast, but lacks alltoall, gather and scatter, memory allocation, windows,
pre-multiplied sum, configuration and last error; ctypes costs 0.8 us per call; nccl4py's high-level API
(`nccl.core`) 12 us. The low-level API is not stable between minor versions: the extras pin the version.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.collective_call import gather_calls
from meshrun.runner.comm.collectives.api import NcclTuning
from meshrun.runner.errors import Exit, RunError, UserError, first_line
from meshrun.runner.processes import mapped_files
from meshrun.runner.spelling import option
from meshrun.runner.system.launcher import variables

OLDEST = 21900  # the first with ncclMemAlloc and ncclCommRegister
CTA_POLICY = 22700
SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
IN_PROGRESS = 7  # ncclInProgress
HOST_IMMEDIATE = 1  # ncclScalarHostImmediate


class NcclFailure(RunError):
    """An NCCL error."""

    exit_code = Exit.BENCH_NCCL_FAILED


@functools.cache
def load() -> Any:
    """nccl4py's low-level bindings. Raises UserError if they or a recent libnccl are missing."""
    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    hint = f"pip install 'meshrun[cuda{major}]' (installs nccl4py and nvidia-nccl-cu{major})"
    hint += f", or {option('device', 'cpu')}"
    try:
        from nccl.bindings import nccl
    except ImportError as reason:
        raise UserError(
            "device data crosses ranks through NCCL, and nccl4py is not installed",
            why=first_line(reason),
            hint=hint,
        ) from reason
    try:
        number = nccl.get_version()
    except (RuntimeError, nccl.NCCLError) as reason:
        raise UserError(
            "device data crosses ranks through NCCL, and no libnccl was found",
            why=first_line(reason),
            expected="libnccl.so.2",
            hint=hint,
        ) from reason
    if number < OLDEST:
        raise UserError(
            "the libnccl found is too old",
            got=f"NCCL {dotted(number)} ({nccl.get_library_path()})",
            expected=f"{dotted(OLDEST)} or later",
            hint=hint,
        )
    return nccl


def version_number() -> int:
    """The loaded libnccl's version number: 22809 for 2.28.9."""
    number: int = load().get_version()
    return number


def version() -> str:
    """The loaded libnccl's version, such as "2.28.9"."""
    return dotted(version_number())


def dotted(number: int) -> str:
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def library_path() -> str:
    """Path of the loaded libnccl, from the process's memory map.

    Raises UserError if two copies are loaded: a communicator of one is invalid in the other.
    """
    nccl = load()
    paths = [path for path in mapped_files() if path.rpartition("/")[2].startswith("libnccl.so")]
    if len(paths) > 1:
        raise UserError(
            "two copies of libnccl are loaded into one process",
            got=" and ".join(paths),
            expected="one",
            hint="one NCCL package per environment, and no other libnccl in LD_LIBRARY_PATH or LD_PRELOAD",
        )
    return paths[0] if paths else str(nccl.get_library_path())


# The functions that `collectives` calls: names in the bindings and in libnccl.
FUNCTIONS = {
    "all_gather": "ncclAllGather",
    "all_reduce": "ncclAllReduce",
    "allto_all": "ncclAlltoAll",
    "broadcast": "ncclBroadcast",
    "gather": "ncclGather",
    "group_end": "ncclGroupEnd",
    "group_start": "ncclGroupStart",
    "recv": "ncclRecv",
    "reduce": "ncclReduce",
    "reduce_scatter": "ncclReduceScatter",
    "scatter": "ncclScatter",
    "send": "ncclSend",
}


@functools.cache
def addresses() -> dict[Callable[..., Any], int]:
    """Addresses of libnccl's functions, by the functions of the bindings that call them."""
    nccl = load()
    library = ctypes.CDLL("libnccl.so.2")  # the one already loaded
    found = {}
    for name, symbol in FUNCTIONS.items():
        if hasattr(library, symbol):  # older libraries lack some
            found[getattr(nccl, name)] = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    return found


def debug_reset() -> Callable[[], object] | None:
    """ncclResetDebugInit: NCCL reads its NCCL_DEBUG variables again. None in a library without it."""
    load()
    return getattr(ctypes.CDLL("libnccl.so.2"), "ncclResetDebugInit", None)


def common_version(control: Control) -> str:
    """Version and path of this rank's libnccl, for reports. Collective.

    Raises UserError on every rank if the versions differ.
    """
    found = gather_calls(
        control, lambda: (version(), library_path()), f"rank {control.rank}", names_rank=True
    )
    for rank, (other, path) in enumerate(found):
        if other != found[0][0]:
            raise UserError(
                "ranks have different versions of NCCL",
                got=f"{found[0][0]} ({found[0][1]}) on rank 0, {other} ({path}) on rank {rank}",
                expected="one version",
                hint="the same environment on every host",
                everywhere=True,
            )
    return f"NCCL {found[control.rank][0]} ({found[control.rank][1]})"


def failure(doing: str, reason: Exception) -> NcclFailure:
    """nccl4py's error, with the library's last error text."""
    nccl = load()
    text = nccl.get_last_error(nccl.Comm())  # any communicator: NCCL keeps one text
    return NcclFailure(
        f"NCCL failed while {doing}",
        got=": ".join(part for part in (first_line(reason), text.strip()) if part),
        hint="set NCCL_DEBUG=WARN for NCCL's error messages, NCCL_DEBUG=INFO for its full log",
    )


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """Convert nccl4py's error to NcclFailure."""
    try:
        yield
    except load().NCCLError as reason:
        raise failure(doing, reason) from reason


def new_unique_id() -> bytes:
    """A new ncclUniqueId, with which the ranks of one communicator find each other; one rank creates it."""
    with failures("creating a unique id"):
        return bytes(memoryview(load().get_unique_id()))


class Communicator:
    """One rank of an NCCL communicator on the current device; `handle` is the argument of the bindings'
    calls.

    cta_policy: as in ncclConfig_t, None for the library's default. peers: upper limit on the number of ranks
    that this one exchanges messages with; None if unknown. tuning: instead of the environment's. NCCL reads
    NCCL_ALGO and NCCL_PROTO for every communicator (src/graph/tuning.cc), but NCCL_MIN_NCHANNELS and
    NCCL_MAX_NCHANNELS once in a process (src/graph/connect.cc): channels are set in the configuration.
    """

    def __init__(
        self,
        size: int,
        rank: int,
        unique_id: bytes,
        *,
        cta_policy: int | None = None,
        peers: int | None = None,
        tuning: NcclTuning | None = None,
    ) -> None:
        self.nccl = load()
        self.size, self.rank = size, rank
        self._lock, self._closed = threading.Lock(), False
        number = version_number()
        if cta_policy is not None and number < CTA_POLICY:
            raise UserError(
                "this NCCL has no CTA policy", got=f"NCCL {version()}",
                expected=f"{dotted(CTA_POLICY)} or later", everywhere=True,
            )  # fmt: skip
        config = self.nccl.Config()
        # As nccl-tests sets them, each in the versions that support it.
        if cta_policy is not None:
            config.cta_policy = cta_policy
        if number >= 22800:
            config.nvlink_centric_sched = 1
        if peers is not None and number >= 23000:
            config.max_p2p_peers = peers
        chosen: dict[str, str | None] = {}
        if tuning is not None:
            chosen = {"NCCL_ALGO": tuning.algorithm, "NCCL_PROTO": tuning.protocol}
            if tuning.channels is not None:
                config.min_ctas = config.max_ctas = tuning.channels
        unique = self.nccl.UniqueId.from_buffer(bytearray(unique_id))
        with variables(chosen), failures(f"joining {size} ranks"):
            self.handle = self.nccl.comm_init_rank_config(size, unique, rank, config.ptr)

    def check(self) -> None:
        """Raise NcclFailure if the communicator has an asynchronous error."""
        with self._lock, failures("checking for asynchronous errors"):
            status = 0 if self._closed else self.nccl.comm_get_async_error(self.handle)
            if status not in (0, IN_PROGRESS):
                raise self.nccl.NCCLError(status)

    def block_if_aborted(self) -> None:
        """After `abort`, block until the process ends, which it is about to do.

        Aborted work would otherwise look like a result, or like another failure.
        """
        if self._closed:
            threading.Event().wait()

    def abort(self) -> None:
        """Abort the work in progress on this rank only; from any thread. Does nothing after `close`."""
        with self._lock:  # no `check` while the communicator is destroyed
            closed, self._closed = self._closed, True
        if not closed:
            with failures("aborting"):
                self.nccl.comm_abort(self.handle)

    def close(self) -> None:
        self.block_if_aborted()
        with self._lock:
            self._closed = True
        with failures("closing"):
            self.nccl.comm_destroy(self.handle)
