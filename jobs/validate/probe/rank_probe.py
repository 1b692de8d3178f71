"""Measure with the ranks of a run: rank 0 leads, the others follow."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np

from meshrun import World
from meshrun.jobs.validate.plan import RungName
from meshrun.jobs.validate.probe import gather, multi_rank, single_rank
from meshrun.jobs.validate.probe.api import (
    CounterKey,
    Flows,
    LoadReadings,
    RankPlace,
    Seconds,
    SingleRankOp,
    WrongData,
)
from meshrun.jobs.validate.probe.buffers import IpcBuffers, ProbeBuffers
from meshrun.jobs.validate.probe.gpu_load import GpuLoad
from meshrun.jobs.validate.probe.gpu_places import GpuPlace, gpu_place, rank_places
from meshrun.jobs.validate.probe.multi_rank import FlowPairs, RingCommunicators, group_of, senders_receivers
from meshrun.jobs.validate.probe.sampling import CONNECT_GRACE, IDLE, Workload, sample, without_stolen
from meshrun.jobs.validate.verdict import Unit
from meshrun.runner.comm.collectives.api import Collectives
from meshrun.runner.device.raw.box import open_box
from meshrun.runner.errors import MeshrunError
from meshrun.runner.report.units import size_name
from meshrun.runner.world.stuck import nccl_ras
from meshrun.runner.world.stuck.nccl_ras import NcclDiagnostics
from meshrun.runner.world.watchdog.watchdog import MeasurementProgress

ReadCounters = Callable[[], Mapping[tuple[str, str], float | str]]
END = "end"
# The fields of LoadReadings after `rank`.
LOAD_FIGURES = (
    ("power", "mean"),
    ("power", "most"),
    ("SM clock", "mean"),
    ("SM clock", "least"),
    ("temperature", "most"),
    ("memory temperature", "most"),
)


class RankProbe:
    """`probe.api.Probe` by ranks: rank 0 calls its methods inside `lead` while the others are in `follow`.

    GPUs use NCCL, cuBLAS and copy engines; CPUs use MPI and NumPy on host memory. read: reads the counters of
    this rank's host and device, by part and counter.
    """

    def __init__(
        self, world: World, progress: MeasurementProgress, group: Collectives, read: ReadCounters
    ) -> None:
        self.world, self.progress, self.group, self.read = world, progress, group, read
        cuda = world.here.device.kind == "cuda"
        self._box = open_box() if cuda else None
        self._buffers = ProbeBuffers(world, group, self._box)
        self._peer_memory = IpcBuffers(world, self._box) if self._box else None
        self._rings = RingCommunicators(world, group)
        self._gpus = gather_gpu_places(world)
        self.load = GpuLoad(world.here.device.uuid if cuda else None)
        self._latest = group  # the most recently used communicator
        self._wrong: list[WrongData] = []
        self._measured = 0
        self._done: set[Any] = set()  # measured before, so connections are open
        self._leading = self._in_progress = False
        self.ended = False  # rank 0 has finished, and the others know it

    # Known without measuring

    @cached_property
    def hosts(self) -> Sequence[str]:
        """Names of hosts, as `host_names` has them."""
        return list(dict.fromkeys(host_names(self.world)))

    @cached_property
    def places(self) -> Sequence[RankPlace]:
        numbers = {name: number for number, name in enumerate(self.hosts)}
        ranks = self.world.ranks
        return rank_places(
            [numbers[name] for name in host_names(self.world)],
            [rank.local for rank in ranks],
            [rank.device.name for rank in ranks],
            self._gpus,
        )

    @property
    def unit(self) -> Unit:
        return "GPU" if self._box else "CPU"

    @property
    def unavailable(self) -> Mapping[RungName, str]:
        return {} if self._box else {"host": "ranks on CPUs have no host-to-GPU link"}

    # Rank 0

    @contextmanager
    def lead(self) -> Iterator[None]:
        """Lead measurements from rank 0 inside the block; the other ranks are in `follow`.

        A MeshrunError that leaves the block is also raised by every `follow`.
        """
        self._leading, self.ended = True, False
        failure = None
        try:
            yield
        except MeshrunError as reason:
            failure = reason
            raise
        finally:
            self._leading = False
            # During a measurement the others would not receive it.
            if not self._in_progress:
                if failure is not None:
                    failure.everywhere = True
                self.world.control.broadcast((END, (failure,)))
                self.ended = True

    def clock(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def single_rank(
        self, what: SingleRankOp, nbytes: int, samples: int, ranks: Sequence[int] | None = None
    ) -> Seconds:
        return without_stolen(self._measure("single_rank", samples, what, nbytes, ranks))

    def flows(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        """Time flows, as in `Probe`. A rank that sends and receives does both in one operation, so its two
        flows have the same time.
        """
        senders, receivers = senders_receivers(flows)
        if not senders:
            return np.empty((0, samples))
        rows = self._measure("flows", samples, tuple(zip(senders, receivers, strict=True)), nbytes)
        return without_stolen(np.maximum(rows[senders], rows[receivers]))

    def copies_unavailable(self) -> str:
        why: str = self._request("unreachable")
        return why

    def copies(self, flows: Flows, nbytes: int, samples: int) -> Seconds:
        senders, receivers = senders_receivers(flows)
        if not senders:
            return np.empty((0, samples))
        rows = self._measure("copies", samples, tuple(zip(senders, receivers, strict=True)), nbytes)
        return without_stolen(rows[senders])

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        """Time rings, as in `Probe`. NCCL orders hosts by rank; inside a host it follows the links."""
        chosen = tuple(tuple(map(int, group)) for group in groups)
        members = [rank for group in chosen for rank in group]
        if len({*members}) < len(members) or not all(chosen):
            raise ValueError("groups must be disjoint and not empty")
        if not chosen:
            return np.empty((0, samples))
        rows = self._measure("rings", samples, chosen, nbytes)
        return without_stolen(np.array([rows[list(group)].max(axis=0) for group in chosen]))

    def wrong_data(self) -> Sequence[WrongData]:
        return [WrongData(*values) for of_rank in self._request("wrong_data") for values in of_rank]

    def loads(self) -> Sequence[LoadReadings]:
        return [LoadReadings(*values) for values in self._request("loads") if values]

    def nccl_diagnostics(self) -> NcclDiagnostics | None:
        place = nccl_ras.place(self.world.run_id)
        if place is None or self.group.library < nccl_ras.DIAGNOSES:
            return None
        return nccl_ras.diagnostics(place)

    def counters(self) -> Mapping[CounterKey, float | str]:
        """Read counters, as in `Probe`; of those that several ranks read, the last rank's count."""
        hosts = self.hosts
        return {
            (hosts[place.host], part, counter): value
            for place, of_rank in zip(self.places, self._request("counters"), strict=True)
            for part, counter, value in of_rank
        }

    def _measure(self, name: str, samples: int, *arguments: Any) -> Seconds:
        if samples < 1:
            raise ValueError(f"{samples} samples")
        rows: Seconds = self._request(name, samples, *arguments)
        return rows

    def _request(self, name: str, *arguments: Any) -> Any:
        """Have every rank take part. Returns rank 0's result."""
        if not self._leading:
            raise RuntimeError("RankProbe measures only inside `lead`")
        self.world.control.broadcast((name, arguments))
        return self._take_part(name, arguments)

    # Every rank

    def follow(self) -> None:
        """Take part in what rank 0 measures, until it leaves `lead`. Called on the other ranks.

        Raises the MeshrunError with which rank 0 left, and errors of this rank alone.
        """
        self.ended = False
        while True:
            name, arguments = self.world.control.broadcast(None)
            if name == END:
                break
            try:
                self._take_part(name, arguments)
            except MeshrunError as reason:
                if not reason.everywhere:
                    raise
                # It was raised on rank 0 too, which decides how to continue.
        self.ended = True
        (failure,) = arguments
        if failure is not None:
            raise failure

    def _take_part(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self._in_progress = True
        try:
            result = getattr(self, f"_{name}_here")(*arguments)
        except MeshrunError as failure:
            self._in_progress = not failure.everywhere
            raise
        self._in_progress = False
        self.progress.pause()
        return result

    def _single_rank_here(
        self, samples: int, what: SingleRankOp, nbytes: int, ranks: Sequence[int] | None
    ) -> Seconds:
        label = self._begin(what, nbytes)
        workload = single_rank.workload(self._buffers, what, nbytes)  # collective
        if ranks is not None and self.world.rank not in ranks:
            workload = dataclasses.replace(IDLE, seconds=workload.seconds)
        reading = self.load.reading() if what == "tensor" else nullcontext()
        with reading:
            return self._sample(label, samples, workload, self._grace([what]))

    def _flows_here(self, samples: int, flows: FlowPairs, nbytes: int) -> Seconds:
        label = self._begin("flows", nbytes)
        self._latest = self.group
        workload = multi_rank.flow(self._buffers, self.group, flows, nbytes)
        return self._sample(label, samples, workload, self._grace(flows))

    def _unreachable_here(self) -> str:
        if self._peer_memory is None:
            return "ranks on CPUs have no copy engines"
        self._begin("copies", 0)
        self._peer_memory.reserve()
        return self._peer_memory.unreachable

    def _copies_here(self, samples: int, flows: FlowPairs, nbytes: int) -> Seconds:
        assert self._peer_memory is not None, "copies_unavailable says that there are none"
        label = self._begin("copies", nbytes)
        self._latest = self.group
        workload = multi_rank.copy(self._buffers, self._peer_memory, self.group, flows, nbytes)
        return self._sample(label, samples, workload, self._grace([("copy", *flow) for flow in flows]))

    def _rings_here(self, samples: int, groups: tuple[tuple[int, ...], ...], nbytes: int) -> Seconds:
        label = self._begin("rings", nbytes)
        self.progress.before("connecting the ranks")
        self.progress.grace = grace = 0.0 if groups in self._rings else CONNECT_GRACE
        group = self._rings.of(groups)
        self._latest = group or self.group
        number = group_of(groups, self.world.rank) or 0
        workload = multi_rank.ring(self._buffers, group, number, nbytes)
        return self._sample(label, samples, workload, grace)

    def _begin(self, what: str, nbytes: int) -> str:
        self._measured += 1
        label = f"{what} {size_name(nbytes)}, round {self._measured}"
        self.progress.begin(label, "allocating memory")
        return label

    def _grace(self, what: Sequence[Any]) -> float:
        """Return the additional seconds that a first measurement may take; the same on every rank."""
        new = not self._done.issuperset(what)
        self._done.update(what)
        return CONNECT_GRACE if new else 0.0

    def _sample(self, label: str, samples: int, workload: Workload, grace: float) -> Seconds:
        """Take samples. Returns (ranks, 2, samples) on rank 0, as `sample` returns them."""
        taken, wrong = sample(self.world, self.progress, label, workload, samples, 2 * self._measured, grace)
        self._wrong += wrong
        return gather.rows(self.world.control, taken)

    def _wrong_data_here(self) -> list[Any]:
        mine, self._wrong = self._wrong, []
        return gather.values(self.world.control, [dataclasses.astuple(one) for one in mine])

    def _counters_here(self) -> list[Any]:
        mine = [(part, counter, value) for (part, counter), value in self.read().items()]
        return gather.values(self.world.control, mine)

    def _loads_here(self) -> list[Any]:
        readings = self.load.readings
        figures = [getattr(readings.get(name), which, None) for name, which in LOAD_FIGURES]
        return gather.values(self.world.control, (self.world.rank, *figures) if readings else ())

    # Close

    def abort(self) -> None:
        """Abort the operations on this rank's device."""
        # The latest first: NCCL may wait for it when the others are aborted.
        self._latest.abort()
        for group in (self.group, *self._rings.groups):
            if group is not self._latest:
                group.abort()

    def close(self) -> None:
        """Close in order. Collective."""
        self._rings.close()
        self.group.close()
        if self._peer_memory is not None:
            self._peer_memory.close()
        if self._box is not None:
            self._box.close()


@contextmanager
def open_probe(world: World, progress: MeasurementProgress, read: ReadCounters = dict) -> Iterator[RankProbe]:
    """Open a probe of the world's ranks, and close it at the end of the block. Collective."""
    progress.begin("opening validate", "connecting the ranks")
    progress.grace = CONNECT_GRACE
    probe = RankProbe(world, progress, world.collectives(world.control), read)
    progress.abort = probe.abort
    progress.grace = 0.0
    progress.pause()
    done = False
    try:
        yield probe
        done = True
    finally:
        # A rank that fails alone must not wait for the others, which may be waiting for it.
        if done or probe.ended:
            progress.begin("closing validate")
            probe.close()
            progress.pause()


def gather_gpu_places(world: World) -> list[GpuPlace]:
    """Return the place of each rank's GPU on its host, by rank; CPUs have none. Collective."""
    if not any(rank.device.kind == "cuda" for rank in world.ranks):
        return [GpuPlace()] * world.size
    here = world.here.device
    mine = gpu_place(here.uuid, here.bus_id, [rank.device.bus_id for rank in world.beside])
    return world.control.allgather(mine)


def host_names(world: World) -> list[str]:
    """Return the host name of each rank; hosts with the same name are numbered."""
    names = {rank.host_id: rank.host for rank in world.ranks}
    sharing: dict[str, list[str]] = {}
    for identity, name in names.items():
        sharing.setdefault(name, []).append(identity)
    for name, identities in sharing.items():
        for number, identity in enumerate(identities, 1):
            names[identity] = f"{name}#{number}" if len(identities) > 1 else name
    return [names[rank.host_id] for rank in world.ranks]
