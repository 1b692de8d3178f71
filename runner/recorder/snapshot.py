"""What all ranks of this host do now: their recorders, their processes, and where their Python stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrun.runner.recorder import process, ring
from meshrun.runner.recorder.process import Frame, State
from meshrun.runner.recorder.ring import Operation, members_of, runs_of

LAST = 3  # operations of a rank that a snapshot has besides those that are open


@dataclass(frozen=True)
class RankSnapshot:
    """One rank.

    state: of its process. idle: seconds since it last entered or left an operation. operations: those that
    are open, outer ones first, and the last few. collectives: by label of the communicator, the number of the
    last collective that it has entered. groups: the ranks of each communicator, None if not recorded.
    messages: by label and peer, the numbers of messages sent to it and expected from it. at: where its Python
    stands; None if it did not answer. total: operations so far. gpu: readings of its GPU, by name, or why
    there are none; None if there is no GPU or it was not asked.
    """

    rank: int
    host: str
    device: str
    state: State
    idle: float
    operations: tuple[Operation, ...] = ()
    collectives: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    messages: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    at: Frame | None = None
    total: int = 0
    gpu: Mapping[str, float] | str | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, {self.device})"

    @property
    def current(self) -> Operation | None:
        """The operation that the main thread is in, the innermost; None outside any."""
        return next((one for one in reversed(self.operations) if one.main and one.left is None), None)

    @property
    def last(self) -> Operation | None:
        """The operation that the main thread has left last."""
        done = [one for one in self.operations if one.main and one.left is not None]
        return min(done, key=lambda one: one.left or 0.0, default=None)


def snapshots(paths: Sequence[Path], *, with_lines: bool = True) -> list[RankSnapshot]:
    """Return the ranks whose recorder files these are, in rank order. Files that are not complete are left
    out. with_lines: ask their Python, which takes up to `process.ANSWER_TIMEOUT`."""
    read = [(path, found) for path in paths if (found := ring.read(path))]
    states = [process.process_state(one.about["pid"], one.about.get("start")) for _, one in read]
    lines: dict[Path, Frame | None] = {}
    if with_lines:
        asked = [
            (path, one.about["pid"])
            for (path, one), state in zip(read, states, strict=True)
            if state not in ("stopped", "dead")
        ]
        for (path, _), stack in zip(asked, process.tracebacks(asked), strict=True):
            lines[path] = process.place(stack)
    made = [snapshot(one, state, lines.get(path)) for (path, one), state in zip(read, states, strict=True)]
    return sorted(made, key=lambda one: one.rank)


def snapshot(recording: ring.Recording, state: State, at: Frame | None = None) -> RankSnapshot:
    """Reduce a recording to what is needed to tell why ranks wait."""
    about, operations = recording.about, recording.operations
    open_ones = [one for one in operations if one.left is None]
    done = sorted((one for one in operations if one.left is not None), key=lambda one: -(one.left or 0.0))
    messages: dict[str, dict[int, tuple[int, int]]] = {}
    for (label, peer), counts in recording.messages.items():
        messages.setdefault(label, {})[peer] = counts
    return RankSnapshot(
        about["rank"],
        about["host"],
        about["device"],
        state,
        min((_since(one) for one in operations), default=recording.age),
        tuple(sorted([*open_ones, *done[-LAST:]], key=lambda one: one.number)),
        recording.collectives,
        {label: group.members for label, group in recording.groups.items()},
        messages,
        at,
        operations[-1].number if operations else 0,
    )


def _since(operation: Operation) -> float:
    return operation.entered if operation.left is None else operation.left


def to_json(one: RankSnapshot) -> dict[str, Any]:
    """Return a snapshot as plain values, for a message to another host."""
    groups = {label: None if ranks is None else runs_of(ranks) for label, ranks in one.groups.items()}
    return {**dataclasses.asdict(dataclasses.replace(one, groups={})), "groups": groups}


def from_json(values: Mapping[str, Any]) -> RankSnapshot:
    """Return the snapshot that `to_json` made plain, before or after JSON. KeyError, TypeError, ValueError or
    OverflowError if it is none."""
    gpu = values.get("gpu")
    tables = [values["groups"], values["messages"], *dict(values["messages"]).values()]
    for table in tables if gpu is None or isinstance(gpu, str) else [*tables, gpu]:
        if not isinstance(table, Mapping):
            raise TypeError(f"{type(table).__name__} instead of a table")
    groups: Iterable[tuple[str, Any]] = values["groups"].items()
    plain = {
        **values,
        "operations": tuple(Operation(**each) for each in values["operations"]),
        "groups": {label: None if members is None else members_of(members) for label, members in groups},
        "messages": {
            label: {int(peer): (int(sent), int(due)) for peer, (sent, due) in peers.items()}
            for label, peers in values["messages"].items()
        },
        "at": None if values["at"] is None else Frame(**values["at"]),
        "gpu": {name: float(value) for name, value in gpu.items()} if isinstance(gpu, Mapping) else gpu,
    }
    return RankSnapshot(**plain)
