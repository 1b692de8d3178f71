"""Results of measurements between ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs.bench.lessons.protocol import rate

Pair = tuple[int, int]  # source rank, target rank


@dataclass(frozen=True)
class Nominal:
    """Nominal GB/s of a GPU's links in one direction, all NVLinks together; None if unknown."""

    nvlink: float | None
    nvlink_source: str
    pcie: float | None
    pcie_source: str


@dataclass(frozen=True)
class PeerResults:
    """methods: labels. sizes: bytes. devices: UUIDs of the ranks' GPUs, "" on CPUs. messages: the library.

    nominal: of each rank, empty on CPUs. seconds: per transfer of a series, by method, pair and bytes.
    latency: seconds of a single transfer of the first size. missing: reason -> methods and pairs not
    measured. inside: seconds of a copy inside rank 0 by bytes, on CPUs. mismatches: a sentence for each wrong
    transfer.
    """

    methods: tuple[str, ...]
    pairs: tuple[Pair, ...]
    sizes: tuple[int, ...]
    devices: tuple[str, ...]
    messages: str
    nominal: tuple[Nominal, ...] = ()
    seconds: dict[tuple[str, Pair, int], float] = field(default_factory=dict)
    latency: dict[tuple[str, Pair], float] = field(default_factory=dict)
    missing: dict[str, list[tuple[str, Pair]]] = field(default_factory=dict)
    inside: dict[int, float] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)

    @property
    def first(self) -> Pair:
        """The pair shown by size: the first with the most methods measured."""
        return max(
            self.pairs, key=lambda pair: sum((method, pair) in self.latency for method in self.methods)
        )

    def bandwidth(self, method: str, pair: Pair, nbytes: int | None = None) -> float | None:
        """Return GB/s; by default of the largest size."""
        nbytes = self.sizes[-1] if nbytes is None else nbytes
        seconds = self.seconds.get((method, pair, nbytes))
        return None if seconds is None else rate(nbytes, seconds)

    def microseconds(self, method: str, pair: Pair) -> float | None:
        seconds = self.latency.get((method, pair))
        return None if seconds is None else seconds * 1e6

    def same_gpu(self, pair: Pair) -> bool:
        return bool(self.devices[pair[0]]) and self.devices[pair[0]] == self.devices[pair[1]]
