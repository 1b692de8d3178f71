"""Why ranks wait: from what each rank does to sentences that name the culprit first. Pure functions.

Each waiting rank waits for others: in a collective, for the ranks of its communicator that have not entered
it; for messages, for the ranks that have posted fewer than it expects. Whoever waits for nobody and holds up
somebody is a culprit. If there is none, ranks wait for each other in a circle, which is a deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshrun.runner.recorder.ring import DEVICE_WAIT, ON_DEVICE, WAIT, Operation
from meshrun.runner.recorder.snapshot import RankSnapshot
from meshrun.runner.world.watchdog.report import ranks_text

WAITS = (WAIT, DEVICE_WAIT)
MOST_SENTENCES = 4
CPU = "CPU"  # a device that has done what a rank has issued when the call returns


@dataclass(frozen=True)
class Explanation:
    """culprits: ranks, most certain first. sentences: the report, the culprit's first."""

    culprits: tuple[int, ...]
    sentences: tuple[str, ...]


def explain(ranks: Sequence[RankSnapshot], size: int, silent: Mapping[int, str] | None = None) -> Explanation:
    """Say why nothing progresses.

    ranks: those that could be read, in rank order. size: of the run. silent: why other ranks could not be
    read.
    """
    known = {one.rank: one for one in ranks}
    found = [
        *_dead(known),
        *_stopped(known),
        *_silent(size, known, silent or {}),
    ]
    if not found:
        found = [*_different_collectives(known)]
    if not found:
        waits = waits_for(known)
        found = [*_holding_up(known, waits), *_circles(known, waits)]
    if not found:
        found = [*_nobody_missing(known)]
    if not found:
        found = [*_behind_on_device(known)]
    if not found:
        found = [(one.rank, f"{one} is not waiting for another rank: {_doing(one)}") for one in ranks]
    blamed = {rank for rank, _ in found}
    culprits = tuple(dict.fromkeys(rank for rank, _ in found))
    sentences = list(dict.fromkeys(sentence for _, sentence in found))
    if len(sentences) > MOST_SENTENCES:
        more = len(sentences) - MOST_SENTENCES
        sentences[MOST_SENTENCES:] = [f"{more} more like it: {ranks_text(sorted(blamed)[:64])}"]
    return Explanation(culprits, (*sentences, *_others(known, blamed)))


Found = Iterable[tuple[int, str]]  # culprit and sentence


def _dead(known: Mapping[int, RankSnapshot]) -> Found:
    for one in known.values():
        if one.state == "dead":
            yield one.rank, f"{one} is dead: its process has ended; {_last(one)}{_held_up(one, known)}"


def _stopped(known: Mapping[int, RankSnapshot]) -> Found:
    for one in known.values():
        if one.state == "stopped":
            yield (
                one.rank,
                f"{one} is stopped (by SIGSTOP or a debugger); {_last(one)}{_held_up(one, known)}",
            )


def _silent(size: int, known: Mapping[int, RankSnapshot], silent: Mapping[int, str]) -> Found:
    for rank in range(size):
        if rank not in known:
            yield rank, f"rank {rank} cannot be read: {silent.get(rank, 'it has no recorder')}"


def _different_collectives(known: Mapping[int, RankSnapshot]) -> Found:
    """Ranks that are in another collective than most of their communicator, with the same number."""
    by_place: dict[tuple[str, int], list[RankSnapshot]] = {}
    for one in known.values():
        operation = waiting_in(one)
        if operation is not None and operation.is_collective:
            by_place.setdefault((operation.group, operation.sequence), []).append(one)
    waits = waits_for(known)
    for ranks in by_place.values():
        calls: dict[str, list[RankSnapshot]] = {}
        for one in ranks:
            calls.setdefault(_call(one), []).append(one)
        # Usual is what most ranks call; of as many, what fewer others wait for.
        usual = max(calls, key=lambda call: (len(calls[call]), -_waiters(calls[call], waits)))
        for call, those in calls.items():
            for one in those if call != usual else ():
                yield (
                    one.rank,
                    f"{one} is in {call}{_at(one)}, and {_ranks(calls[usual])} in {usual}"
                    f"{_at(calls[usual][0])}: the ranks of a communicator must call the same collectives in "
                    "the same order",
                )


def _waiters(ranks: Sequence[RankSnapshot], waits: Mapping[int, set[int]]) -> int:
    """How many ranks wait for any of `ranks`."""
    return sum(not missing.isdisjoint(one.rank for one in ranks) for missing in waits.values())


def _call(one: RankSnapshot) -> str:
    operation = one.current
    assert operation is not None
    return str(operation)


def waiting_in(one: RankSnapshot) -> Operation | None:
    """Return the collective or wait that a rank's main thread is in; None if it does something else."""
    operation = one.current
    if operation is not None and one.state != "dead" and (operation.is_collective or operation.name in WAITS):
        return operation
    return None


def waits_for(known: Mapping[int, RankSnapshot]) -> dict[int, set[int]]:
    """Return for each waiting rank the ranks that it waits for; others are left out."""
    waits = {}
    for one in known.values():
        operation = waiting_in(one)
        if operation is None:
            continue
        if operation.is_collective:
            missing = _not_entered(one, operation.group, operation.sequence, known)
        elif operation.name == WAIT:
            missing = _unsent(one, operation.group, known) or _unreceived(one, operation.group, known)
        else:
            missing = _not_issued(one, known)
        waits[one.rank] = missing - {one.rank}
    return waits


def _not_issued(one: RankSnapshot, known: Mapping[int, RankSnapshot]) -> set[int]:
    """Ranks that have issued less than what was issued on `one`, for any communicator of device arrays: its
    device waits for them."""
    return {
        rank
        for group in one.groups
        if group.endswith(ON_DEVICE)
        for rank in (
            *_not_entered(one, group, one.collectives.get(group, 0), known),
            *_unsent(one, group, known),
        )
        if rank != one.rank
    }


def _not_entered(one: RankSnapshot, group: str, sequence: int, known: Mapping[int, RankSnapshot]) -> set[int]:
    """Ranks of a communicator that have not entered its collective number `sequence`."""
    members = one.groups.get(group)
    return {
        other.rank
        for other in known.values()
        if (group in other.groups if members is None else other.rank in members)
        and other.collectives.get(group, 0) < sequence
    }


def _unsent(one: RankSnapshot, group: str, known: Mapping[int, RankSnapshot]) -> set[int]:
    """Ranks that have posted fewer messages to `one` than it expects."""
    due = one.messages.get(group, {})
    return {
        peer
        for peer, (_, expected) in due.items()
        if peer in known and known[peer].messages.get(group, {}).get(one.rank, (0, 0))[0] < expected
    }


def _unreceived(one: RankSnapshot, group: str, known: Mapping[int, RankSnapshot]) -> set[int]:
    """Ranks that expect fewer messages from `one` than it has sent: large ones wait for the receiver."""
    posted = one.messages.get(group, {})
    return {
        peer
        for peer, (sent, _) in posted.items()
        if peer in known and known[peer].messages.get(group, {}).get(one.rank, (0, 0))[1] < sent
    }


def _holding_up(known: Mapping[int, RankSnapshot], waits: Mapping[int, set[int]]) -> Found:
    """Ranks that wait for nobody and that others wait for."""
    for culprit, ranks in _held(waits):
        one = known[culprit]
        first = known[ranks[0]]
        operation = waiting_in(first)
        assert operation is not None
        same = [known[rank] for rank in ranks if _same_wait(waiting_in(known[rank]), operation)]
        what = f"entered {operation}, in" if operation.is_collective else "sent or received the messages, for"
        what = f"has not {what} which {_ranks(same)} {_waited(same)}"
        yield culprit, f"{one} {what}; {_doing(one)}"


def _held(waits: Mapping[int, set[int]]) -> list[tuple[int, list[int]]]:
    """Return the ranks that wait for nobody, each with those that wait for it; what holds up most first."""
    held: dict[int, list[int]] = {}
    for rank, missing in waits.items():
        for other in missing:
            if not waits.get(other):
                held.setdefault(other, []).append(rank)
    return sorted(held.items(), key=lambda item: (-len(item[1]), item[0]))


def _same_wait(one: Operation | None, other: Operation) -> bool:
    return one is not None and (one.name, one.group, one.sequence) == (
        other.name,
        other.group,
        other.sequence,
    )


def _circles(known: Mapping[int, RankSnapshot], waits: Mapping[int, set[int]]) -> Found:
    """Ranks that wait for each other."""
    left = set(waits)
    while left:
        begin = min(left)
        circle = _circle_from(begin, waits)
        left -= {begin, *circle}
        if not circle:
            continue
        parts = []
        for rank, after in zip(circle, [*circle[1:], circle[0]], strict=True):
            operation = waiting_in(known[rank])
            assert operation is not None
            what = f"in {operation}" if operation.is_collective else "for messages"
            waited = _seconds(operation.entered)
            parts.append(f"rank {rank} has waited {waited} for rank {after} {what}{_at(known[rank])}")
        names = ranks_text(sorted(circle))
        for rank in circle:
            yield rank, f"deadlock: {names} wait for each other: {'; '.join(parts[:MOST_SENTENCES])}"


def _circle_from(rank: int, waits: Mapping[int, set[int]]) -> list[int]:
    """Return the circle that a walk from `rank` ends in, from its least rank on; [] if it ends."""
    walked: list[int] = []
    while rank not in walked:
        walked.append(rank)
        following = waits.get(rank)
        if not following:
            return []
        rank = min(following)
    circle = walked[walked.index(rank) :]
    first = circle.index(min(circle))
    return [*circle[first:], *circle[:first]]


def _nobody_missing(known: Mapping[int, RankSnapshot]) -> Found:
    """Operations that every rank has entered and some have not left: the transport, or a lost message."""
    by_name: dict[str, list[RankSnapshot]] = {}
    for one in known.values():
        operation = waiting_in(one)
        if operation is not None:
            by_name.setdefault(str(operation), []).append(one)
    for name, ranks in by_name.items():
        for one in ranks:
            yield (
                one.rank,
                f"{_ranks(ranks)} {_waited(ranks)} in {name}, which no rank is missing in{_at(ranks[0])}",
            )


def _behind_on_device(known: Mapping[int, RankSnapshot]) -> Found:
    """Ranks that others' devices wait for. No recorder sees how a user's code waits for its device."""
    ahead = {one.rank: _not_issued(one, known) for one in known.values() if one.device != CPU}
    for culprit, ranks in _held(ahead):
        waiting, verb = ("device", "waits") if len(ranks) == 1 else ("devices", "wait")
        names = _ranks([known[rank] for rank in ranks])
        one = known[culprit]
        yield culprit, f"{one} has not issued what the {waiting} of {names} {verb} for; {_doing(one)}"


def _others(known: Mapping[int, RankSnapshot], blamed: set[int]) -> list[str]:
    """A line for each group of other ranks that do the same at the same line."""
    by_doing: dict[str, list[RankSnapshot]] = {}
    for one in known.values():
        if one.rank not in blamed:
            by_doing.setdefault(_short(one), []).append(one)
    lines = [f"{_ranks(ranks)}: {text}" for text, ranks in by_doing.items()]
    if len(lines) > 2 * MOST_SENTENCES:
        lines[2 * MOST_SENTENCES :] = [f"and {len(lines) - 2 * MOST_SENTENCES} more groups of ranks"]
    return lines


def _short(one: RankSnapshot) -> str:
    what = f"in {one.current}" if one.current else "in no operation"
    return f"{what}{_at(one)}"


def _held_up(one: RankSnapshot, known: Mapping[int, RankSnapshot]) -> str:
    """Who waits for a rank that is dead or stopped."""
    waiting = [
        known[rank] for rank, missing in waits_for(known).items() if one.rank in missing and rank != one.rank
    ]
    if not waiting:
        return ""
    operation = waiting_in(waiting[0])
    what = f"in {operation}" if operation is not None and operation.is_collective else "for its messages"
    return f"; {_ranks(waiting)} {_waited(waiting)} {what}"


def _doing(one: RankSnapshot) -> str:
    operation = one.current
    where = f"it is at {one.at}" if one.at else "its Python line is unknown"
    if operation is None:
        return f"{where}, in no operation; {_last(one)}"
    return f"{where}, for {_seconds(operation.entered)} in {operation}"


def _last(one: RankSnapshot) -> str:
    if (operation := one.current) is not None:
        return f"it was in {operation}, entered {_seconds(operation.entered)} ago"
    if (last := one.last) is not None:
        assert last.left is not None
        return f"the last operation it left was {last}, {_seconds(last.left)} ago"
    return "it has entered no operation"


def _at(one: RankSnapshot) -> str:
    return f" at {one.at}" if one.at else ""


def _waited(ranks: Sequence[RankSnapshot]) -> str:
    """How long the rank that waits longest has waited."""
    entered = [operation.entered for one in ranks if (operation := waiting_in(one)) is not None]
    return f"{'has' if len(ranks) == 1 else 'have'} waited {_seconds(max(entered, default=0.0))}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _ranks(ranks: Sequence[RankSnapshot]) -> str:
    return ranks_text(sorted(one.rank for one in ranks))
