"""Compute chunks again on another device, after a verification has found them wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from meshrun.runner.maps.streamed.cpu_engine import HostEngine
from meshrun.runner.maps.streamed.dispatch import threads_of, warn_of_shortages
from meshrun.runner.maps.streamed.endpoints import Endpoints
from meshrun.runner.maps.streamed.gpu_engine import DeviceEngine
from meshrun.runner.maps.streamed.loop import stream
from meshrun.runner.region import Region
from meshrun.runner.world.world import Rank


@dataclass
class Redo:
    """The chunks of a streamed run that were computed twice; the same on every rank.

    computed: numbers of the chunks that this rank has computed. depth: chunks in flight. second: which rank
    has computed a chunk again, by its number.
    """

    endpoints: Endpoints
    computed: Sequence[int]
    depth: int
    second: dict[int, Rank] = field(default_factory=dict, init=False)
    _first: dict[int, Rank] | None = field(default=None, init=False)

    def first(self) -> dict[int, Rank]:
        """Return which ranks computed the chunks first; those of an earlier run are missing. Collective."""
        if self._first is None:
            world = self.endpoints.world
            everyone = zip(world.ranks, world.control.allgather([*self.computed]), strict=True)
            self._first = {chunk: rank for rank, chunks in everyone for chunk in chunks}
        return self._first

    def chunk_of(self, output: int, index: Sequence[int]) -> int:
        """Return the number of the chunk that holds a cell of an output."""
        endpoints = self.endpoints
        regions = (endpoints.output_regions(number)[output] for number in range(len(endpoints.chunks)))
        return next(number for number, region in enumerate(regions) if _holds(region, index))

    def beside(self, chunks: Collection[int]) -> set[int]:
        """Return the chunks that the same ranks computed first, and nobody again. Collective."""
        first = self.first()
        ranks = {first[chunk].number for chunk in chunks if chunk in first}
        return {chunk for chunk, rank in first.items() if rank.number in ranks} - self.second.keys()

    def again(self, chunks: Collection[int]) -> list[Region]:
        """Compute chunks again, each on another device than at first; return them. Collective.

        Empty if one of them has been computed twice already, or if there is no other device.
        """
        world, second = self.endpoints.world, self._others(sorted(chunks))
        if second is None or not self.second.keys().isdisjoint(chunks):
            return []
        mine = [chunk for chunk, rank in second.items() if rank.number == world.rank]
        engine = DeviceEngine(self.endpoints) if world.backend.asynchronous else HostEngine(self.endpoints)

        def compute() -> None:
            if not mine:
                return
            depth, threads = min(self.depth, len(mine)), threads_of(world)
            spans = self.endpoints.spans
            stream(engine, spans, mine, depth=depth, threads=threads, finished=_nothing, idle=_nothing)
            if len(world.hosts) > 1:
                for sink in self.endpoints.sinks:
                    sink.sync()

        world.collective_call(compute)
        warn_of_shortages(world, engine, world.control.allgather([*engine.shortages]))
        self.second.update(second)
        return [self.endpoints.chunks[chunk] for chunk in second]

    def _others(self, chunks: Sequence[int]) -> dict[int, Rank] | None:
        """Return another rank for each chunk, on a device that has computed none of them if there is one.

        None if a chunk has no other device. Collective.
        """
        ranks, first = self.endpoints.world.ranks, self.first()
        wrong = {_device(first[chunk]) for chunk in (*chunks, *self.second) if chunk in first}
        trusted = [rank for rank in ranks if _device(rank) not in wrong]
        found = {}
        for chunk in chunks:
            own = _device(first[chunk]) if chunk in first else ""
            others = trusted or [rank for rank in ranks if _device(rank) != own]
            if not others:
                return None
            found[chunk] = others[chunk % len(others)]
        return found


def _device(rank: Rank) -> str:
    return rank.device.uuid or f"the CPU of rank {rank.number}"


def _holds(region: Region, index: Sequence[int]) -> bool:
    axes = zip(region.start, index, region.stop, strict=True)
    return all(start <= i < stop for start, i, stop in axes)


def _nothing(number: int = 0) -> None:
    pass
