"""What the ways between ranks were measured to be, as tables, a chart and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.bench.lessons.p2p.methods import HOST
from jobs.bench.lessons.protocol import Chart, Lesson, Line, Table, crossings, rate
from jobs.measure.sizes import size_name

Pair = tuple[int, int]  # the rank that bytes come from, the rank that they go to
PAIRS_NAMED = 3  # in a sentence


@dataclass(frozen=True)
class Nominal:
    """GB/s that a GPU's links carry in one direction, all NVLinks together; None when not known."""

    nvlink: float | None
    nvlink_source: str
    pcie: float | None
    pcie_source: str


@dataclass(frozen=True)
class Measured:
    """ways: labels. sizes: bytes. devices: each rank's GPU's UUID, "" on CPUs. messages: what carries them.

    ahead: the ways whose transfers, where they are several, are queued before the time begins.
    seconds: of one transfer among several, by way, pair and bytes. latency: of one of the first size alone.
    missing: reason -> the ways and pairs not measured. inside: seconds of a copy inside rank 0, by bytes, on
    CPUs. nominal: each rank's. wrong: a sentence for each check that found wrong data.
    """

    ways: tuple[str, ...]
    pairs: tuple[Pair, ...]
    sizes: tuple[int, ...]
    devices: tuple[str, ...]
    messages: str
    nominal: tuple[Nominal, ...] = ()
    seconds: dict[tuple[str, Pair, int], float] = field(default_factory=dict)
    latency: dict[tuple[str, Pair], float] = field(default_factory=dict)
    missing: dict[str, list[tuple[str, Pair]]] = field(default_factory=dict)
    inside: dict[int, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    ahead: tuple[str, ...] = ()

    @property
    def first(self) -> Pair:
        """The pair that is shown by size: the first for which most ways were measured."""
        return max(self.pairs, key=lambda pair: sum((way, pair) in self.latency for way in self.ways))

    def bandwidth(self, way: str, pair: Pair, nbytes: int) -> float | None:
        """GB/s."""
        seconds = self.seconds.get((way, pair, nbytes))
        return None if seconds is None else rate(nbytes, seconds)

    def microseconds(self, way: str, pair: Pair) -> float | None:
        seconds = self.latency.get((way, pair))
        return None if seconds is None else seconds * 1e6


def lesson(found: Measured) -> Lesson:
    """Everything that is shown and recorded."""
    where = "GPUs" if any(found.devices) else "ranks, host memory"
    lines = _lines(found)
    return Lesson(
        name="p2p",
        title=f"The ways between {len(found.devices)} {where}; messages by {found.messages}",
        tables=(_by_size(found, lines), *(_matrix(found, way) for way in found.ways), _latencies(found)),
        said=tuple(said(found, lines)),
        charts=(Chart("size", "bandwidth (GB/s)", lines, bytes=True),),
        wrong=tuple(found.wrong),
        facts=_facts(found),
    )


def _lines(found: Measured) -> tuple[Line, ...]:
    """Bandwidth by size of the first pair."""
    pair = found.first
    lines = [
        Line(way, tuple((float(size), found.bandwidth(way, pair, size)) for size in found.sizes))
        for way in found.ways
    ]
    if found.inside:
        copies = tuple((float(size), rate(size, found.inside[size])) for size in found.sizes)
        lines.append(Line("copy in a rank", copies))
    return tuple(lines)


def _by_size(found: Measured, lines: Sequence[Line]) -> Table:
    titles = ("size", *(f"{line.label} (GB/s)" for line in lines))
    rows = zip(*((y for _, y in line.points) for line in lines), strict=True)
    return Table(
        titles,
        tuple((size_name(size), *row) for size, row in zip(found.sizes, rows, strict=True)),
        f"{_from_to(found.first)}, by size",
    )


def _matrix(found: Measured, way: str) -> Table:
    ranks, largest = range(len(found.devices)), found.sizes[-1]
    return Table(
        ("from", *(f"to {target} (GB/s)" for target in ranks)),
        tuple((source, *(found.bandwidth(way, (source, t), largest) for t in ranks)) for source in ranks),
        f"{way}, {size_name(largest)}",
    )


def _latencies(found: Measured) -> Table:
    return Table(
        ("from, to", *(f"{way} (us)" for way in found.ways)),
        tuple(
            (f"{s}, {t}", *(found.microseconds(way, (s, t)) for way in found.ways)) for s, t in found.pairs
        ),
        f"Latency: {size_name(found.sizes[0])} alone",
    )


def said(found: Measured, lines: Sequence[Line]) -> list[str]:
    """Paragraphs; each figure in them was measured."""
    alone = f", those {HOST} of single ones" if HOST in found.ways else ""
    paragraphs = [
        _fastest(found, lines),
        _detour(found),
        _inside(found),
        _of_nominal(found),
        _over_pairs(found),
        _shared(found),
        "A time is from a barrier of all ranks until both ranks of a pair are done, one pair at a time. "
        f"Bandwidths are of transfers that follow one another{alone}.{_calls(found)}",
    ]
    paragraphs += [f"Not measured: {_listed(cases)}: {reason}." for reason, cases in found.missing.items()]
    return [paragraph for paragraph in paragraphs if paragraph]


def _calls(found: Measured) -> str:
    """What the times of small transfers have in them."""
    ahead = [way for way in found.ways if way in found.ahead and (way, found.first) in found.latency]
    others = [way for way in found.ways if way not in found.ahead and (way, found.first) in found.latency]
    if not ahead:
        return ""
    return (
        f" Those by {', '.join(ahead)} were queued before that, where they were several, so that no calls "
        f"are in their times; in those of {', '.join(others)}, and in every latency, calls are."
    )


def _fastest(found: Measured, lines: Sequence[Line]) -> str:
    """Who wins from which size on, for the first pair."""
    known = [line for line in lines if all(y is not None for _, y in line.points)]
    if not known:
        return ""
    largest = ", ".join(f"{line.label} {_figure(line.points[-1][1])} GB/s" for line in known)
    words = f"{_from_to(found.first)}, {size_name(found.sizes[-1])}: {largest}."
    if len(known) > 1:
        wins = ", ".join(f"{label} from {size_name(round(x))} on" for x, label in crossings(known))
        words += f" Fastest: {wins}."
    return words


def _detour(found: Measured) -> str:
    """What the way through the host costs, for the first pair: in bandwidth, and for one small transfer."""
    slow, best = found.bandwidth(HOST, found.first, found.sizes[-1]), _best(found)
    if not slow or best is None:
        return ""
    soon, way = min((found.latency[way, found.first], way) for way in _others(found))
    late = found.latency[HOST, found.first]
    return (
        f"{size_name(found.sizes[-1])} by {best[1]}: {best[0] / slow:.3g} times the bandwidth of the way "
        f"{HOST} memory. {size_name(found.sizes[0])} alone: {soon * 1e6:.3g} us by {way}, "
        f"{late * 1e6:.3g} us {HOST} memory."
    )


def _inside(found: Measured) -> str:
    """What a message costs beside a copy that stays in the process."""
    largest, best = found.sizes[-1], _best(found)
    copied = rate(largest, found.inside[largest]) if found.inside else None
    if not copied or best is None:
        return ""
    ratio = copied / best[0]
    return f"A copy of {size_name(largest)} inside rank 0 has {ratio:.3g} times the bandwidth of {best[1]}."


def _of_nominal(found: Measured) -> str:
    """The best way without the host beside what the links are made for."""
    best = _best(found)
    if not found.nominal or best is None or _same_gpu(found, found.first):
        return ""
    rated = found.nominal[found.first[0]]
    link, source = (rated.nvlink, rated.nvlink_source) if rated.nvlink else (rated.pcie, rated.pcie_source)
    if link is None:
        return f"What the links could carry is not known ({rated.nvlink_source}; {rated.pcie_source})."
    whose = f"of rank {found.first[0]}'s links ({source})"
    words = f"{best[1]} is {best[0] / link:.1%} of the {link:.4g} GB/s {whose}"
    slow = found.bandwidth(HOST, found.first, found.sizes[-1])
    if slow and rated.pcie:
        words += (
            f", the way {HOST} memory {slow / rated.pcie:.1%} of {rated.pcie:.4g} GB/s ({rated.pcie_source})"
        )
    return f"{words}."


def _others(found: Measured) -> list[str]:
    """The ways but the one through the host, of the first pair."""
    return [way for way in found.ways if way != HOST and (way, found.first) in found.latency]


def _best(found: Measured) -> tuple[float, str] | None:
    """GB/s at the largest size, and the way, of these."""
    values = ((found.bandwidth(way, found.first, found.sizes[-1]), way) for way in _others(found))
    return max(((value, way) for value, way in values if value), default=None)


def _over_pairs(found: Measured) -> str:
    """How far the pairs are apart."""
    sentences = []
    for way in found.ways:
        values = [
            (value, pair) for pair in found.pairs if (value := found.bandwidth(way, pair, found.sizes[-1]))
        ]
        if len(values) > 2:
            (low, slow), (high, fast) = min(values), max(values)
            sentences.append(f"{way} {low:.4g} GB/s ({_arrow(slow)}) to {high:.4g} ({_arrow(fast)})")
    return f"Over all pairs: {', '.join(sentences)}." if sentences else ""


def _shared(found: Measured) -> str:
    sharing = [pair for pair in found.pairs if pair[0] < pair[1] and _same_gpu(found, pair)]
    if not sharing:
        return ""
    return f"Ranks that share a GPU, so that direct copies stay inside it: {_pairs(sharing)}."


def _same_gpu(found: Measured, pair: Pair) -> bool:
    return bool(found.devices[pair[0]]) and found.devices[pair[0]] == found.devices[pair[1]]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _from_to(pair: Pair) -> str:
    return f"From rank {pair[0]} to rank {pair[1]}"


def _listed(cases: Sequence[tuple[str, Pair]]) -> str:
    """Such as "copy engine, kernel stores (0 to 1, 0 to 2)"."""
    ways = ", ".join(dict.fromkeys(way for way, _ in cases))
    return f"{ways} ({_pairs(list(dict.fromkeys(pair for _, pair in cases)))})"


def _pairs(pairs: Sequence[Pair]) -> str:
    more = len(pairs) - PAIRS_NAMED
    named = ", ".join(_arrow(pair) for pair in pairs[:PAIRS_NAMED])
    return f"{named} and {more} more" if more > 0 else named


def _arrow(pair: Pair) -> str:
    return f"{pair[0]} to {pair[1]}"


def _facts(found: Measured) -> dict[str, Any]:
    """Seconds and bytes."""
    return {
        "messages": found.messages,
        "devices": list(found.devices),
        "transfers": [
            {"way": way, "source": source, "target": target, "bytes": nbytes, "seconds": seconds}
            for (way, (source, target), nbytes), seconds in found.seconds.items()
        ],
        "latencies": [
            {"way": way, "source": s, "target": t, "bytes": found.sizes[0], "seconds": seconds}
            for (way, (s, t)), seconds in found.latency.items()
        ],
        "copies_inside": [{"bytes": nbytes, "seconds": s} for nbytes, s in found.inside.items()],
        "not_measured": {
            reason: [[way, *pair] for way, pair in cases] for reason, cases in found.missing.items()
        },
        "nominal": [vars(one) for one in found.nominal],
    }
