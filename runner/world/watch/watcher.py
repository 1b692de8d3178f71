"""The watching of a run on rank 0's host: looks at all ranks, and what is said of slow parts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from meshrun.runner.errors import tell
from meshrun.runner.world.helper_process import write_message
from meshrun.runner.world.watch.judge import Judge, LatePart, RankInterval, RankPart
from meshrun.runner.world.watch.readings import RankCounts


@dataclass
class Watcher:
    """Judges what all ranks of a run do.

    Parameters
    ----------
    parts: where each rank runs, in rank order.
    """

    parts: Sequence[RankPart]
    _judge: Judge = field(init=False)
    _last: dict[int, RankCounts] = field(default_factory=dict)
    _new: dict[int, RankCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._judge = Judge(self.parts)

    def add(self, counts: Mapping[int, RankCounts], at: float) -> list[LatePart]:
        """Add counts, and judge them once each rank has been read since the last look.

        Parameters
        ----------
        counts: of some ranks, such as those of a host.
        at: seconds on the monotonic clock of this host.

        Returns
        -------
        The parts that are found to be slow, each once in a run.
        """
        self._new.update(counts)
        if len(self._new) < len(self.parts):
            return []
        new, self._new = self._new, {}
        last, self._last = self._last, new
        if not last or any(new[rank].at <= last[rank].at for rank in new):
            return []
        ranks = {rank: interval(last[rank], new[rank]) for rank in sorted(new)}
        return self._judge.look(at, ranks)


def interval(last: RankCounts, new: RankCounts) -> RankInterval:
    """Return what a rank did between two readings."""
    lost = {name: max(seconds - last.lost.get(name, 0.0), 0.0) for name, seconds in new.lost.items()}
    return RankInterval(
        new.at - last.at,
        new.steps - last.steps,
        max(new.waited - last.waited, 0.0),
        files=max(new.files - last.files, 0.0),
        lost=lost,
        clock=new.clock,
        memory_clock=new.memory_clock,
    )


def sentence(finding: LatePart) -> str:
    """Return what is said of a slow part.

    Examples
    --------
    >>> sentence(LatePart("rank", "rank 3 of host n1", (3,), "load", 0.0, 0.4, 0.99, "its GPU is shared"))
    'rank 3 of host n1 makes each step 40% longer: load, its GPU is shared (confidence 0.99)'
    """
    return (
        f"{finding.part} makes each step {finding.delay:.0%} longer: {finding.kind}, {finding.evidence} "
        f"(confidence {finding.confidence:.2f})"
    )


def report(finding: LatePart) -> None:
    """Say on the terminal that a part is slow, and tell rank 0, for the record."""
    ago = max(time.monotonic() - finding.since, 0.0)
    tell(f"slow: {sentence(finding)}, since {ago:.0f} s ago")
    write_message({"slow": {**asdict(finding), "since": time.time() - ago}})
