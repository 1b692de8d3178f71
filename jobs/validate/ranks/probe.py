"""The ranks of a run measure the fleet that they are on: rank 0 drives, the others follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

import runner
from jobs.measure.sizes import size_name
from jobs.validate.plan import RungName
from jobs.validate.probe import Alone, Counter, Place, Seconds, Wrong
from jobs.validate.ranks import alone as ranks_alone
from jobs.validate.ranks import gathered
from jobs.validate.ranks import moving as ranks_moving
from jobs.validate.ranks.buffers import Buffers, suited
from jobs.validate.ranks.hosts import host_names
from jobs.validate.ranks.landing import Landings
from jobs.validate.ranks.moving import Flows, Rings, number_of, senders_receivers
from jobs.validate.ranks.part import CONNECTING, Part, kept, sampled
from jobs.validate.verdict import Unit

__all__ = ["RankProbe", "host_names", "opened", "suited"]

Read = Callable[[], Mapping[tuple[str, str], float | str]]
END = "end"


class RankProbe:
    """`jobs.validate.probe.Probe` by ranks. On rank 0, inside `lead`, its methods may be called; the other
    ranks are in `follow` meanwhile.

    GPUs: NCCL between them, cuBLAS and copy engines on each. CPUs: MPI and NumPy, on host memory.
    read: counters of this rank's host and device, by part and counter.
    """

    def __init__(
        self, world: runner.World, trail: runner.MeasurementProgress, group: runner.Collectives, read: Read
    ) -> None:
        self.world, self.trail, self.group, self.read = world, trail, group, read
        cuda = world.here.device.kind == "cuda"
        self._box = runner.open_box() if cuda else None
        self._buffers = Buffers(world, group, self._box)
        self._landings = Landings(world, self._box) if self._box else None
        self._rings = Rings(world)
        self._latest = group  # the communicator that was used last
        self._wrong: list[Wrong] = []
        self._measured = 0
        self._done: set[Any] = set()  # what was measured before, and is open by now
        self._leading = self._under_way = False
        self.ended = False  # the others know that rank 0 has done

    # What is known without measuring

    @cached_property
    def hosts(self) -> Sequence[str]:
        """Names of hosts, as `host_names` has them."""
        return list(dict.fromkeys(host_names(self.world)))

    @cached_property
    def places(self) -> Sequence[Place]:
        numbers = {name: number for number, name in enumerate(self.hosts)}
        names = zip(self.world.ranks, host_names(self.world), strict=True)
        return [Place(rank.number, numbers[name], rank.local) for rank, name in names]

    @property
    def unit(self) -> Unit:
        return "GPU" if self._box else "CPU"

    @property
    def absent(self) -> Mapping[RungName, str]:
        return {} if self._box else {"host": "ranks on CPUs have no way between host and GPU"}

    # Rank 0

    @contextmanager
    def lead(self) -> Iterator[None]:
        """On rank 0: the others do what is asked of this probe, until the end of the block.

        A MeshrunError that leaves the block is raised on all ranks, by their `follow`.
        """
        self._leading, self.ended = True, False
        failure = None
        try:
            yield
        except runner.MeshrunError as reason:
            failure = reason
            raise
        finally:
            self._leading = False
            # In the middle of a measurement the others would not hear it.
            if not self._under_way:
                if failure is not None:
                    failure.everywhere = True
                self.world.control.broadcast((END, (failure,)))
                self.ended = True

    def alone(self, what: Alone, nbytes: int, samples: int) -> Seconds:
        return kept(self._measure("alone", samples, what, nbytes))

    def flows(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        """As Probe says. A rank that sends and receives at once does so in one operation: the times of its
        two flows are one.
        """
        senders, receivers = senders_receivers(flows)
        if not senders:
            return np.empty((0, samples))
        rows = self._measure("flows", samples, tuple(zip(senders, receivers, strict=True)), nbytes)
        return kept(np.maximum(rows[senders], rows[receivers]))

    def no_copies(self) -> str:
        barred: str = self._ask("barred")
        return barred

    def copies(self, flows: Sequence[tuple[int, int]], nbytes: int, samples: int) -> Seconds:
        senders, receivers = senders_receivers(flows)
        if not senders:
            return np.empty((0, samples))
        rows = self._measure("copies", samples, tuple(zip(senders, receivers, strict=True)), nbytes)
        return kept(rows[senders])

    def rings(self, groups: Sequence[Sequence[int]], nbytes: int, samples: int) -> Seconds:
        """As Probe says, as far as the library goes by the order of ranks: NCCL orders hosts by it, and
        inside a host goes by the links.
        """
        chosen = tuple(tuple(map(int, group)) for group in groups)
        members = [rank for group in chosen for rank in group]
        if len({*members}) < len(members) or not all(chosen):
            raise ValueError("groups have ranks, and none in common")
        if not chosen:
            return np.empty((0, samples))
        rows = self._measure("rings", samples, chosen, nbytes)
        return kept(np.array([rows[list(group)].max(axis=0) for group in chosen]))

    def wrong(self) -> Sequence[Wrong]:
        return [Wrong(*values) for of_rank in self._ask("wrong") for values in of_rank]

    def counters(self) -> Mapping[Counter, float | str]:
        """Of a host's counters that several ranks read, those of its last rank."""
        hosts = self.hosts
        return {
            (hosts[place.host], part, counter): value
            for place, of_rank in zip(self.places, self._ask("counters"), strict=True)
            for part, counter, value in of_rank
        }

    def _measure(self, name: str, samples: int, *arguments: Any) -> Seconds:
        if samples < 1:
            raise ValueError(f"{samples} samples")
        rows: Seconds = self._ask(name, samples, *arguments)
        return rows

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Every rank's part of it; what rank 0 gets."""
        if not self._leading:
            raise RuntimeError("a probe of ranks measures inside `lead`")
        self.world.control.broadcast((name, arguments))
        return self._answer(name, arguments)

    # Every rank

    def follow(self) -> None:
        """On the other ranks: take part in what rank 0 asks for, until it leaves `lead`.

        Raises the MeshrunError by which rank 0 left, and what fails on this rank alone.
        """
        self.ended = False
        while True:
            name, arguments = self.world.control.broadcast(None)
            if name == END:
                break
            try:
                self._answer(name, arguments)
            except runner.MeshrunError as reason:
                if not reason.everywhere:
                    raise
                # Rank 0 has met it too, and says how it goes on.
        self.ended = True
        (failure,) = arguments
        if failure is not None:
            raise failure

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self._under_way = True
        try:
            answer = getattr(self, f"_{name}_here")(*arguments)
        except runner.MeshrunError as failure:
            self._under_way = not failure.everywhere
            raise
        self._under_way = False
        self.trail.pause()
        return answer

    def _alone_here(self, samples: int, what: Alone, nbytes: int) -> Seconds:
        label = self._begin(what, nbytes)
        part = ranks_alone.alone(self._buffers, what, nbytes)
        return self._sampled(label, samples, part, self._grace([what]))

    def _flows_here(self, samples: int, flows: Flows, nbytes: int) -> Seconds:
        label = self._begin("flows", nbytes)
        self._latest = self.group
        part = ranks_moving.flow(self._buffers, self.group, flows, nbytes)
        return self._sampled(label, samples, part, self._grace(flows))

    def _barred_here(self) -> str:
        if self._landings is None:
            return "ranks on CPUs have no copy engines"
        self._begin("copies", 0)
        self._landings.hold()
        return self._landings.barred

    def _copies_here(self, samples: int, flows: Flows, nbytes: int) -> Seconds:
        assert self._landings is not None, "no_copies says that there are none"
        label = self._begin("copies", nbytes)
        self._latest = self.group
        part = ranks_moving.copy(self._buffers, self._landings, self.group, flows, nbytes)
        return self._sampled(label, samples, part, self._grace([("copy", *flow) for flow in flows]))

    def _rings_here(self, samples: int, groups: tuple[tuple[int, ...], ...], nbytes: int) -> Seconds:
        label = self._begin("rings", nbytes)
        self.trail.before("connecting the ranks")
        self.trail.grace = grace = 0.0 if groups in self._rings else CONNECTING
        group = self._rings.of(groups)
        self._latest = group or self.group
        number = number_of(groups, self.world.rank) or 0
        part = ranks_moving.ring(self._buffers, group, number, nbytes)
        return self._sampled(label, samples, part, grace)

    def _begin(self, what: str, nbytes: int) -> str:
        self._measured += 1
        label = f"{what} {size_name(nbytes)}, round {self._measured}"
        self.trail.begin(label, "allocating memory")
        return label

    def _grace(self, what: Sequence[Any]) -> float:
        """Seconds more that the first time may take: the same on every rank."""
        new = not self._done.issuperset(what)
        self._done.update(what)
        return CONNECTING if new else 0.0

    def _sampled(self, label: str, samples: int, part: Part, grace: float) -> Seconds:
        """(ranks, 2, samples) on rank 0, as `sampled` has them."""
        taken, wrong = sampled(self.world, self.trail, label, part, samples, 2 * self._measured, grace)
        self._wrong += wrong
        return gathered.rows(self.world.control, taken)

    def _wrong_here(self) -> list[Any]:
        mine, self._wrong = self._wrong, []
        return gathered.values(self.world.control, [dataclasses.astuple(one) for one in mine])

    def _counters_here(self) -> list[Any]:
        mine = [(part, counter, value) for (part, counter), value in self.read().items()]
        return gathered.values(self.world.control, mine)

    # The end

    def abort(self) -> None:
        """Give up what is under way on this rank's device."""
        # That first: to end the others, NCCL may wait for it.
        self._latest.abort()
        for group in (self.group, *self._rings.groups):
            if group is not self._latest:
                group.abort()

    def close(self) -> None:
        """Orderly end; collective."""
        self._rings.close()
        self.group.close()
        if self._landings is not None:
            self._landings.close()
        if self._box is not None:
            self._box.close()


@contextmanager
def opened(world: runner.World, trail: runner.MeasurementProgress, read: Read = dict) -> Iterator[RankProbe]:
    """A probe of the world's ranks, closed in order at the end; collective."""
    trail.begin("opening validate", "connecting the ranks")
    trail.grace = CONNECTING
    probe = RankProbe(world, trail, world.collectives(world.control), read)
    trail.abort = probe.abort
    trail.grace = 0.0
    trail.pause()
    done = False
    try:
        yield probe
        done = True
    finally:
        # A rank that fails alone cannot wait for the others, which may be waiting for it.
        if done or probe.ended:
            trail.begin("closing validate")
            probe.close()
            trail.pause()
