"""The world: all ranks with their hosts and devices, and this rank's back end and communicators."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np

from meshrun.runner.comm.api import Control
from meshrun.runner.comm.checksum.checked import SHARE, CheckedControl, Checksums
from meshrun.runner.comm.checksum.sums import sums_of
from meshrun.runner.comm.collective_call import call_and_tell, collective_call, gather_calls, on_root
from meshrun.runner.comm.collectives.api import Collectives, NcclTuning
from meshrun.runner.comm.recorded import Trail, log_calls, record_operations
from meshrun.runner.comm.threads import ThreadComm
from meshrun.runner.device.api import Backend, Device
from meshrun.runner.errors import RunError, UserError, first_line, is_met_by_all
from meshrun.runner.options.choices import Checksum, DeviceChoice
from meshrun.runner.processes import boot_id
from meshrun.runner.recorder.operations import OperationLog
from meshrun.runner.recorder.process import remove_stale
from meshrun.runner.recorder.ring import Recorder, file_of
from meshrun.runner.region import Array, HostArray
from meshrun.runner.report.phases import Phases
from meshrun.runner.report.versions import installed_version
from meshrun.runner.spelling import option, python_caller
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.system import launcher
from meshrun.runner.world.agreement.operations import Operations
from meshrun.runner.world.binding import (
    bind_device,
    open_arrays,
    open_collectives,
    visible_gpus,
)
from meshrun.runner.world.failure import FailureHandler, Guard, OwnRank
from meshrun.runner.world.group import Group
from meshrun.runner.world.log import LOGGER
from meshrun.runner.world.process_grid import Grid, open_grid, process_grid
from meshrun.runner.world.run_status import remove_stale_claims
from meshrun.runner.world.stuck import nccl_ras

Value = TypeVar("Value")
Own = TypeVar("Own")

LATER = 10.0  # seconds that rank 0 may start later than a rank that MPI does not connect to it


@dataclass(frozen=True)
class Rank:
    """One rank: host name and id, index on that host, process, device."""

    number: int
    host: str
    host_id: str
    local: int
    pid: int
    device: Device

    def __str__(self) -> str:
        return f"rank {self.number}, host {self.host}, {self.device}"


Check = Callable[[Control, Sequence[Rank], Backend], Sequence[str]]


@dataclass
class SavedLoops:
    """The loops of a program whose states `meshrun.checkpoint` saves.

    resume: whether they continue from what an earlier run has saved. program: its name and a checksum of its
    text; None: of the file that calls. transaction: of the run whose job has the loops, which holds their
    locks; None: each loop has its own. unfinished: whether a loop continued from the state of a run that
    failed: ended loops are then of an earlier run. loops: by path. progress: what shows the iterations, see
    `report.progress.ProgressBar.iterations`; None: each loop has its own.
    """

    resume: bool = False
    program: tuple[str, str] | None = None
    transaction: OutputTransaction | None = None
    unfinished: bool = False
    loops: dict[Path, Any] = field(default_factory=dict)
    progress: Callable[[int, int, Callable[[], str]], None] | None = None


@dataclass
class World(Group):
    """All ranks of a run, and this rank's communicators and back end.

    Attributes
    ----------
    rank, size : int
        This rank's number, from 0 on, and the number of ranks.
    ranks : tuple of Rank
        All ranks, in rank order.
    run_id : str
        Random text, the same on every rank.
    warnings : list of str
        From opening the world, and from `warn`.
    network : str or None
        The interface between hosts that the user or the launcher chose; None: any.
    control : Control
        The communicator of control messages and host data.
    arrays : Arrays
        The communicator of arrays on the ranks' devices.
    backend : Backend
        The device: its memory, its stream and its array module, `backend.xp`.
    recorder : Recorder or None
        Of this rank's operations; None if they are not recorded.
    checksums : Checksums or None
        Of what the communicators move; None if nothing is checked.
    phases : Phases
        Times of the current run.
    operations : Operations
        On distributed arrays, so far.
    prepared : dict
        What calls of functions on distributed arrays keep for the next call.
    checkpoints : SavedLoops
        Of the program's loops.

    Examples
    --------
    >>> with meshrun.open_world() as world:
    ...     u = world.load("u.npy")
    ...     print(world.here, float(u.sum()))
    """

    ranks: tuple[Rank, ...]
    run_id: str
    warnings: list[str] = field(default_factory=list)
    network: str | None = None
    recorder: Recorder | None = None
    checksums: Checksums | None = None
    phases: Phases = field(init=False)
    operations: Operations = field(init=False, repr=False, compare=False)
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    checkpoints: SavedLoops = field(default_factory=SavedLoops, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phases = self.new_phases()
        self.operations = Operations(self.control)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the world. An error of this rank alone ends all ranks, which may be waiting for it."""
        if failure is None or self.size == 1 or is_met_by_all(failure):
            self.close()
        elif isinstance(failure, Exception):
            Guard(self.own_rank, FailureHandler(debug=True)).__exit__(kind, failure, trace)

    def close(self) -> None:
        """Free the communicators; a second call does nothing. Collective."""
        if not self._closed:
            self._closed = True
            super().close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def new_phases(self) -> Phases:
        """Return phases of which none has begun."""
        synchronize = self.backend.synchronize if self.backend.asynchronous else None
        return Phases(synchronize, self.recorder)

    @property
    def here(self) -> Rank:
        """This rank: its number, host, process and device."""
        return self.ranks[self.rank]

    @property
    def own_rank(self) -> OwnRank:
        """This rank, for `Guard`, which ends the run if the rank fails."""
        return OwnRank(self.control, str(self.here), self.run_id, self.recorder)

    @property
    def hosts(self) -> list[str]:
        """Host names, in the order of their first rank."""
        return list({rank.host_id: rank.host for rank in self.ranks}.values())

    @property
    def beside(self) -> list[Rank]:
        """The ranks on this rank's host, itself included."""
        return [rank for rank in self.ranks if rank.host_id == self.here.host_id]

    @property
    def cores(self) -> int:
        """This rank's share of its host's cores, at least 1."""
        # Of all cores: a bound rank's affinity mask has only its own.
        return max((os.cpu_count() or 1) // len(self.beside), 1)

    def sum_words(self, words: HostArray) -> None:
        """Add the ranks' words, into each rank's, for a value that the program asks for. Collective.

        Parameters
        ----------
        words : numpy.ndarray
            Integers, which are replaced by their sums over the ranks.
        """
        if self.size > 1:
            with self.operations.waits:
                self.control.all_reduce(words, "sum")

    def waited_for(self, value: Array) -> Any:
        """Return the number that an array of this rank's device holds.

        Parameters
        ----------
        value : array
            Of one cell.
        """
        if not self.backend.asynchronous:
            return value.item()
        with self.operations.waits:
            return value.item()

    def places(self) -> list[dict[str, Any]]:
        """Return an entry per rank for a record: its number, host and device."""
        return [
            {
                "rank": rank.number,
                "host": rank.host,
                "local_rank": rank.local,
                "kind": rank.device.kind,
                "index": rank.device.index,
                "name": rank.device.name,
                "uuid": rank.device.uuid,
            }
            for rank in self.ranks
        ]

    def versions(self) -> dict[str, str]:
        """Return the versions of the software that a run's figures depend on."""
        found = {"python": sys.version.split()[0], "numpy": np.__version__, "transport": self.arrays.label}
        for package in ("meshrun", "mpi4py"):
            if known := installed_version(package):
                found[package] = known
        if "mpi4py.MPI" in sys.modules:
            library = sys.modules["mpi4py.MPI"].Get_library_version()
            found["mpi"] = library.replace("\0", "").splitlines()[0].strip()
        if self.backend.device.kind == "cuda":
            found["cupy"] = self.xp.__version__
            found["cuda_runtime"] = str(self.xp.cuda.runtime.runtimeGetVersion())
            found["cuda_driver"] = str(self.xp.cuda.runtime.driverGetVersion())
        return found

    def warn(self, sentence: str) -> None:
        """Add a warning to the record, and log it on rank 0, which a command prints. Every rank must call it.

        Parameters
        ----------
        sentence : str
            The warning.
        """
        self.warnings.append(sentence)
        if self.rank == 0:
            LOGGER.warning("%s", sentence)

    def grid(self, *shape: int) -> Grid:
        """Return a Cartesian grid of all ranks, with a group of ranks along each of its axes. Collective.

        Ranks number the grid in C order, the last axis fastest. Close it with its `close`.

        Parameters
        ----------
        *shape : int
            Number of ranks along each axis. meshrun replaces a 0, so that the grid is as square as possible.

        Returns
        -------
        Grid
            This rank's position, and its groups.

        Raises
        ------
        UserError
            Unless the grid has as many positions as there are ranks.
        """
        return open_grid(self, process_grid(shape, self.size), shared_gpu=bool(clashes(self.ranks)))

    def on_root(self, function: Callable[[], Value]) -> Value:
        """Call a function on rank 0 only; return its value, or raise its error, on every rank. Collective.

        For example, one rank instead of thousands reads a file.

        Parameters
        ----------
        function : callable
            Without arguments; its value must be one that can be pickled.

        Returns
        -------
        object
            What the function returned on rank 0.

        Raises
        ------
        RunError
            If the value cannot be pickled.
        """
        return on_root(self.control, function, self.here)

    def collective_call(self, function: Callable[[], Value]) -> Value:
        """Call a function on every rank; if any fails, raise the first one's error on all. Collective.

        Parameters
        ----------
        function : callable
            Without arguments.

        Returns
        -------
        object
            What the function returned on this rank.
        """
        return collective_call(self.control, function, self.here)

    def gather_calls(self, function: Callable[[], Value]) -> list[Value]:
        """Call a function on every rank; return all values, in rank order. Collective.

        Parameters
        ----------
        function : callable
            Without arguments; its value must be one that can be pickled.

        Returns
        -------
        list
            What the function returned on each rank. Errors are those of `collective_call`.
        """
        return gather_calls(self.control, function, self.here)

    def call_and_tell(self, function: Callable[[], tuple[Own, Value]]) -> tuple[Own, list[Value]]:
        """Call a function on every rank; return one value of this rank and one of every rank. Collective.

        Parameters
        ----------
        function : callable
            Without arguments; returns a pair, whose second value must be one that can be pickled.

        Returns
        -------
        own, values : object, list
            The first value of this rank, and the second of every rank, in rank order. Errors are those of
            `collective_call`.
        """
        return call_and_tell(self.control, function, self.here)

    def collectives(
        self,
        group: Control,
        *,
        cta_policy: int | None = None,
        peers: int | None = None,
        stream: Literal["main", "null", "own"] = "main",
        tuning: NcclTuning | None = None,
        transport: Literal["nccl", "mpi"] | None = None,
    ) -> Collectives:
        """Open collectives on raw device memory among the ranks of a group. Collective.

        Parameters
        ----------
        group : Control
            All ranks (`control`), or those of one color (`control.split`).
        cta_policy, peers : int, optional
            NCCL's configuration; ignored on CPUs.
        stream : {"main", "null", "own"}
            The backend's main stream, CUDA's default one, or a new one (`Backend.new_stream`); ignored on
            CPUs.
        tuning : NcclTuning, optional
            Algorithm and protocol, instead of the environment's NCCL_ALGO and NCCL_PROTO; ignored on CPUs.
        transport : {"nccl", "mpi"}, optional
            None: NCCL on GPUs and MPI on CPUs. "mpi" on GPUs needs a CUDA-aware MPI.

        Returns
        -------
        Collectives
            Its methods take buffers of this rank's device.
        """
        collectives = open_collectives(group, self.backend, cta_policy, peers, stream, tuning, transport)
        log_calls(collectives)
        return collectives


@python_caller()
def open_world(
    device: DeviceChoice = "auto",
    *,
    oversubscribe: bool = False,
    expected_ranks: int | None = None,
    control: Control | None = None,
    check: Check | None = None,
    record: str | None = None,
    log: OperationLog | None = None,
    later: bool = False,
) -> World:
    """Find the ranks and bind this rank's device; what `meshrun.open_world` does, without arrays. Collective.

    The parameters and errors are those of `meshrun.open_world`.
    """
    control = control or find_ranks(expected_ranks)
    host, host_id = identify_host()
    where = f"rank {control.rank}, host {host}"
    surveys = gather_calls(control, lambda: (host_id, visible_gpus(device)), where, names_rank=True)
    host_ids = [survey[0] for survey in surveys]
    visible = [survey[1] for survey in surveys]
    local = host_ids[: control.rank].count(host_id)
    neighbours = host_ids.count(host_id)
    backend = collective_call(
        control,
        lambda: bind_device(control, visible, local, neighbours, oversubscribe, later),
        where,
        names_rank=True,
    )
    places = control.allgather((host, local, os.getpid(), control.shared_memory_size(), backend.device))
    ranks = tuple(
        Rank(number, name, identity, index, pid, bound)
        for number, (identity, (name, index, pid, _, bound)) in enumerate(zip(host_ids, places, strict=True))
    )
    clash = clashes(ranks)
    if clash and not oversubscribe:
        raise clash_error(clash)
    remarks = check(control, ranks, backend) if check else ()
    run_id = control.broadcast(os.urandom(6).hex())
    warnings = [*locality_warnings(host_ids, [place[3] for place in places]), *remarks]
    recorder: Recorder | None = None
    if record is not None:
        recorder, reasons = open_recorder(control, ranks, run_id, record)
        warnings += reasons
    if log is not None and recorder is None:
        raise UserError(
            "operations cannot be recorded without a flight recorder", why=warnings[-1], everywhere=True
        )
    trail = None if recorder is None else Trail(recorder, "world", range(control.size), log)
    record_operations(control, trail)
    listens = {nccl_ras.ADDRESS: nccl_ras.address_of(run_id)}
    arrays = open_arrays(control, backend, shared_gpu=bool(clash), later=later, variables=listens)
    return World(control, arrays, backend, ranks, run_id, warnings, recorder=recorder)


def with_checksums(world: World, choice: Checksum) -> World:
    """Return the same world with communicators that check what arrives; the world itself for "off"."""
    if choice == "off":
        return world
    names = [f"rank {rank.number} ({rank.host}, {rank.device})" for rank in world.ranks]
    checksums = Checksums(SHARE[choice], int(world.run_id, 16), names)
    control = CheckedControl(world.control, checksums)
    on_host = world.arrays is world.control
    arrays = control if on_host else control.checked(world.arrays, sums_of(world.backend))
    return replace(world, control=control, arrays=arrays, checksums=checksums)


def open_recorder(
    control: Control, ranks: Sequence[Rank], run_id: str, command: str
) -> tuple[Recorder | None, list[str]]:
    """Open this rank's flight recorder; returns it, and warnings about ranks that have none. Collective."""
    here = ranks[control.rank]
    about = {
        "run": run_id,
        "rank": here.number,
        "size": control.size,
        "host": here.host,
        "device": str(here.device),
        **({"gpu": here.device.uuid} if here.device.uuid else {}),
        "command": command[:1000],
    }
    recorder: Recorder | None = None
    reason = ""
    try:
        if here.local == 0:
            remove_stale()
            remove_stale_claims()
        recorder = Recorder(file_of(run_id, here.number), about)
    except OSError as failure:
        why = failure.strerror or first_line(failure)
        reason = f"[{here}] no flight recorder, which says where a stuck run stands: {why}"
    # All ranks or none: a rank without a recorder would look as if it had entered nothing.
    reasons = [reason for reason in control.allgather(reason) if reason]
    if reasons and recorder is not None:
        recorder.close()
        recorder = None
    return recorder, reasons[:1]


def single_rank_world(backend: Backend) -> World:
    """The world of a single rank, this process, regardless of what launched it."""
    control = ThreadComm()
    host, host_id = identify_host()
    here = Rank(0, host, host_id, 0, os.getpid(), backend.device)
    return World(control, control, backend, (here,), os.urandom(6).hex())


def identify_host() -> tuple[str, str]:
    """This host's name, and an id that differs between hosts of the same name."""
    name = os.uname().nodename
    return name, f"{name}/{boot_id()}"


def find_ranks(expected: int | None) -> Control:
    """The communicator of the ranks that the launcher started: MPI's, or of this process only without one."""
    launched = launcher.detect_launcher()
    launcher.check_connected(launched)
    if launched is None or launched.size == 1:
        tasks = launcher.allocated_tasks() if launched is None else 1
        if tasks > 1 and expected != 1:
            raise UserError(
                "this process is a single rank inside a Slurm allocation",
                got="1 rank",
                expected=f"{tasks} (SLURM_NTASKS)",
                hint="srun --mpi=pmix meshrun ..., or meshrun -n 1 ... for one rank",
            )
        launcher.check_expected(expected, 1, launched)
        return ThreadComm()
    from meshrun.runner.comm.mpi import MpiComm

    try:
        comm = MpiComm()
    except (ImportError, RuntimeError) as reason:
        if lacks_mpi(reason):
            raise UserError(
                f"{launched.launcher} started this process, but mpi4py cannot load an MPI library",
                why=first_line(reason),
                hint="load the site's MPI module, or pip install 'meshrun[mpi]' if it has none",
            ) from reason
        raise RunError(
            f"{launched.launcher} started this process as rank {launched.rank}, but MPI failed to start",
            why=f"{type(reason).__name__}: {first_line(reason)}",
            hint="python -m mpi4py.bench helloworld with the same launcher, which tries MPI without meshrun",
        ) from reason
    check_singleton(launched, comm.size)
    launcher.check_expected(expected, comm.size, launched)
    return comm


def lacks_mpi(reason: Exception) -> bool:
    """Whether mpi4py, or an MPI library that it fits, is missing; other errors have other causes."""
    if isinstance(reason, ModuleNotFoundError):
        return (reason.name or "").partition(".")[0] == "mpi4py"
    if isinstance(reason, ImportError):  # of the dynamic linker, about the library or one of its symbols
        return "mpi" in str(reason).lower()
    return isinstance(reason, RuntimeError) and str(reason).startswith("cannot load MPI library")


def check_singleton(launched: launcher.DetectedLauncher, size: int) -> None:
    """Refuse N separate runs of one rank each, the effect of a mismatch of MPI library and launcher."""
    if launched.size is None and launched.rank >= size:
        raise UserError(
            f"{launched.launcher} started this process as rank {launched.rank}, but MPI connects only {size} "
            "rank(s): launcher and MPI library do not match",
            hint=launcher.singleton_fix(),
        )
    if launched.size is not None and launched.size != size:
        if launched.rank != 0:  # one of the N processes reports, and the launcher ends all when one ends
            time.sleep(LATER)
        raise UserError(
            f"{launched.launcher} started {launched.size} processes, but MPI connects only {size} of them: "
            "launcher and MPI library do not match",
            got=f"{size} rank(s)",
            expected=f"{launched.size}",
            hint=launcher.singleton_fix(),
            everywhere=launched.rank != 0,
        )


def clashes(ranks: Sequence[Rank]) -> list[tuple[Rank, Rank]]:
    """Pairs of ranks bound to one GPU, by host and UUID, because device numbers differ between ranks."""
    first: dict[tuple[str, str], Rank] = {}
    pairs = []
    for rank in ranks:
        if rank.device.kind == "cuda":
            other = first.setdefault((rank.host_id, rank.device.uuid), rank)
            if other is not rank:
                pairs.append((other, rank))
    return pairs


def clash_error(pairs: Sequence[tuple[Rank, Rank]]) -> UserError:
    one, other = pairs[0]
    return UserError(
        f"ranks {one.number} and {other.number} on host {one.host} are bound to one GPU "
        f"({one.device.uuid}, bus {one.device.bus_id})",
        expected="a GPU for each rank",
        hint="one rank per GPU with all of them visible (srun --gpus-per-node, no CUDA_VISIBLE_DEVICES), "
        f"or {option('oversubscribe', True)} to share",
        everywhere=True,
    )


def locality_warnings(host_ids: Sequence[str], shared_sizes: Sequence[int | None]) -> list[str]:
    """Warnings where MPI's groups of ranks that share memory differ from those by host id, which are used."""
    return [
        f"host {host_id.split('/')[0]}: {host_ids.count(host_id)} ranks by host identity, but MPI sees "
        f"{size} sharing memory with rank {number}; devices are bound by host identity"
        for number, (host_id, size) in enumerate(zip(host_ids, shared_sizes, strict=True))
        if size is not None and host_ids.index(host_id) == number and host_ids.count(host_id) != size
    ]
