"""Who holds up a run: cases, and random programs of which the stuck rank is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrun.runner.recorder.process import Frame
from meshrun.runner.recorder.ring import DEVICE_WAIT, WAIT, Operation
from meshrun.runner.recorder.snapshot import RankSnapshot, from_json, to_json
from meshrun.runner.world.stuck.explain import explain, waits_for
from meshrun.runner.world.watchdog.channel import MAX_MESSAGE

LINE = Frame("/home/a/edges.py", 17, "smooth")
LIBRARY = Frame("/home/a/edges.py", 30, "edges")


def rank(number: int, *operations: Operation, at: Frame | None = LIBRARY, **other: Any) -> RankSnapshot:
    values: dict[str, Any] = {"groups": {"world": (0, 1, 2, 3)}, "collectives": {"world": 117}, **other}
    return RankSnapshot(number, "n1", f"GPU {number}", "running", 12.0, operations, at=at, **values)


def entered(name: str, sequence: int = 0, group: str = "world", since: float = 12.0) -> Operation:
    return Operation(900, name, since, None, 64, group, sequence)


def waiting(number: int, **other: Any) -> RankSnapshot:
    return rank(number, entered("all_reduce", 118), **{"collectives": {"world": 118}, **other})


def test_the_rank_that_has_not_entered_comes_first() -> None:
    kernel = entered("kernel", group="")
    found = explain([waiting(0), waiting(1), rank(2, kernel, at=LINE), waiting(3)], 4)
    assert found.culprits == (2,)
    assert found.sentences == (
        "rank 2 (host n1, GPU 2) has not entered all_reduce 118, in which ranks 0-1, 3 have waited 12 s; "
        "it is at edges.py:17 in smooth, for 12 s in kernel",
        "ranks 0-1, 3: in all_reduce 118 at edges.py:30 in edges",
    )


def test_a_stopped_rank_and_its_last_operation() -> None:
    left = Operation(7, "kernel", 14.0, 13.5)
    found = explain([waiting(0), replace(rank(1, left, at=None), state="stopped")], 2)
    assert found.culprits == (1,)
    assert found.sentences[0] == (
        "rank 1 (host n1, GPU 1) is stopped (by SIGSTOP or a debugger); the last operation it left was "
        "kernel, 14 s ago; rank 0 has waited 12 s in all_reduce 118"
    )


def test_a_dead_rank_is_named_even_if_others_hold_up_more() -> None:
    found = explain([waiting(0), rank(1), replace(rank(2, at=None), state="dead")], 3)
    assert found.culprits == (2,)
    assert "rank 2 (host n1, GPU 2) is dead" in found.sentences[0]


def test_a_rank_that_cannot_be_read() -> None:
    found = explain([waiting(0)], 2, {1: "it has ended normally"})
    assert found.culprits == (1,)
    assert found.sentences[0] == "rank 1 cannot be read: it has ended normally"


def test_different_collectives() -> None:
    other = rank(2, entered("barrier", 118), at=LINE, collectives={"world": 118})
    found = explain([waiting(0), waiting(1), other], 3)
    assert found.culprits == (2,)
    assert "rank 2 (host n1, GPU 2) is in barrier 118 at edges.py:17 in smooth" in found.sentences[0]
    assert "ranks 0-1 in all_reduce 118" in found.sentences[0]


@pytest.mark.parametrize("odd", [0, 2])
def test_different_collectives_of_as_many_ranks(odd: int) -> None:
    """Ranks 1 and 3 wait for messages of the odd one; the other has had its messages."""
    ranks = {
        odd: rank(odd, entered("barrier", 118), collectives={"world": 118}),
        2 - odd: rank(2 - odd, entered("all_reduce", 118), collectives={"world": 118}),
    }
    for number in (1, 3):
        ranks[number] = rank(number, entered(WAIT), messages={"world": {odd: (0, 1)}})
    found = explain([ranks[number] for number in range(4)], 4)
    assert found.culprits == (odd,)
    assert f"rank {odd} (host n1, GPU {odd}) is in barrier 118" in found.sentences[0]


def test_two_ranks_that_both_receive_first() -> None:
    both = [
        rank(number, entered(WAIT), messages={"world": {1 - number: (0, 1)}}, at=LINE) for number in (0, 1)
    ]
    found = explain([*both, waiting(2)], 3)
    assert found.culprits == (0, 1)
    assert found.sentences[0].startswith("deadlock: ranks 0-1 wait for each other: rank 0 has waited 12 s")


def test_two_ranks_that_both_send_first() -> None:
    both = [
        rank(number, entered(WAIT), messages={"world": {1 - number: (1, 0)}}, at=LINE) for number in (0, 1)
    ]
    assert explain(both, 2).culprits == (0, 1)


def test_a_circle_that_others_lead_into_is_found_once() -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which waits for rank 1."""
    due = {0: {1: (0, 1)}, 1: {2: (0, 1)}, 2: {1: (0, 1)}}
    ranks = [rank(number, entered(WAIT), messages={"world": peers}) for number, peers in due.items()]
    found = explain(ranks, 3)
    assert found.culprits == (1, 2)
    assert sum("deadlock" in sentence for sentence in found.sentences) == 1


def test_a_device_waits_for_messages_that_were_not_sent() -> None:
    group = "world on device"
    waits = rank(0, entered(DEVICE_WAIT, group=""), messages={group: {1: (1, 1)}}, groups={group: (0, 1)})
    assert explain([waits, rank(1, entered("kernel", group=""), groups={group: (0, 1)})], 2).culprits == (1,)


DEVICE = {"world on device": (0, 1, 2)}


@pytest.mark.parametrize("device", ["GPU", "CPU"])
def test_a_device_waits_although_the_user_s_code_waits_in_its_own_way(device: str) -> None:
    """Ranks 0 and 2 wait by CuPy, which no recorder sees; rank 1 has issued one collective less."""
    job = entered("job", group="")
    ranks = [
        replace(rank(number, job, groups=DEVICE, collectives={"world on device": count}), device=device)
        for number, count in enumerate([6, 5, 6])
    ]
    found = explain(ranks, 3)
    if device == "CPU":  # nothing that was issued is still to be done
        assert found.culprits == (0, 1, 2)
        return
    assert found.culprits == (1,)
    assert found.sentences == (
        "rank 1 (host n1, GPU) has not issued what the devices of ranks 0, 2 wait for; it is at edges.py:30 "
        "in edges, for 12 s in job",
        "ranks 0, 2: in job at edges.py:30 in edges",
    )


def test_of_devices_that_wait_for_each_other_s_ranks_the_last_is_named() -> None:
    ranks = [
        rank(number, groups=DEVICE, collectives={"world on device": count})
        for number, count in enumerate([6, 5, 4])
    ]
    assert explain(ranks, 3).culprits == (2,)


def test_a_device_that_waits_for_a_message() -> None:
    group = "world on device"
    ranks = [
        rank(0, groups=DEVICE, messages={group: {1: (1, 1)}}),
        rank(1, groups=DEVICE, messages={group: {0: (0, 1)}}),
        rank(2, groups=DEVICE),
    ]
    found = explain(ranks, 3)
    assert found.culprits == (1,)
    assert "has not issued what the device of rank 0 waits for; it is at" in found.sentences[0]


def test_a_collective_that_all_have_entered() -> None:
    ranks = [waiting(0), waiting(1)]
    ranks = [replace(one, groups={"world": (0, 1)}) for one in ranks]
    assert explain(ranks, 2).sentences[0] == (
        "ranks 0-1 have waited 12 s in all_reduce 118, which no rank is missing in at edges.py:30 in edges"
    )


@pytest.mark.parametrize("size", [1, 64, 1000])
def test_a_report_is_short(size: int) -> None:
    """Ranks that are all at different lines."""
    ranks = [
        rank(number, entered("kernel", group=""), at=Frame("a.py", number, "f")) for number in range(size)
    ]
    assert len(explain(ranks, size).sentences) <= 5 + 9
    assert max(map(len, explain(ranks, size).sentences)) < 400


def test_a_snapshot_crosses_as_json() -> None:
    one = rank(3, entered("barrier", 9), at=None, messages={"world": {2: (4, 5)}}, total=9)
    for snapshot in (one, replace(one, at=LINE, groups={"world": None})):
        assert from_json(json.loads(json.dumps(to_json(snapshot)))) == snapshot


def test_a_snapshot_of_a_rank_among_many_is_one_message() -> None:
    peers = dict.fromkeys(range(1000), (1000000, 1000000))
    one = rank(0, entered("barrier", 9), messages={"world": peers}, groups={"world": tuple(range(50_000))})
    text = json.dumps({"snapshot": to_json(one)})
    assert len(text) < MAX_MESSAGE
    assert from_json(json.loads(text)["snapshot"]) == one


# Random programs, run by a model of ranks.


@dataclass
class ModelRank:
    number: int
    place: int = 0  # in the program
    inside: bool = False
    sequences: dict[str, int] = field(default_factory=dict)
    messages: dict[int, list[int]] = field(default_factory=dict)


Step = tuple[str, int]  # "all": a collective of all; "half": of the ranks of its parity; "shift": by so many


def groups_of(size: int) -> dict[str, tuple[int, ...]]:
    return {"world": tuple(range(size)), "0": tuple(range(0, size, 2)), "1": tuple(range(1, size, 2))}


def group_of(step: Step, number: int) -> str:
    return str(number % 2) if step[0] == "half" else "world"


def run(program: Sequence[Step], size: int, stuck: int, place: int) -> list[RankSnapshot]:
    """Run `program` until nobody can go on; rank `stuck` stays before its step number `place`."""
    ranks = [ModelRank(number) for number in range(size)]
    groups = groups_of(size)
    went_on = True
    while went_on:
        went_on = False
        for one in ranks:
            if one.place == len(program) or (one.number == stuck and one.place == place):
                continue
            step = program[one.place]
            group = group_of(step, one.number)
            to, source = (one.number + step[1]) % size, (one.number - step[1]) % size
            if not one.inside:
                one.inside = went_on = True
                if step[0] == "shift":
                    one.messages.setdefault(to, [0, 0])[0] += 1
                    one.messages.setdefault(source, [0, 0])[1] += 1
                else:
                    one.sequences[group] = one.sequences.get(group, 0) + 1
            if step[0] == "shift":
                sent = ranks[source].messages.get(one.number, [0, 0])[0]
                done = sent >= one.messages[source][1]
            else:
                mine = one.sequences[group]
                done = all(ranks[other].sequences.get(group, 0) >= mine for other in groups[group])
            if done:
                one.inside, one.place, went_on = False, one.place + 1, True
    found = []
    for one in ranks:
        operation = Operation(1, "kernel", 5.0, None)
        if one.inside:
            step = program[one.place]
            group = group_of(step, one.number)
            name, number = (WAIT, 0) if step[0] == "shift" else ("all_reduce", one.sequences[group])
            operation = Operation(2, name, 5.0, None, 0, group, number)
        found.append(
            rank(
                one.number,
                operation,
                groups={label: members for label, members in groups.items() if one.number in members},
                collectives=one.sequences,
                messages={"world": {peer: (sent, due) for peer, (sent, due) in one.messages.items()}},
            )
        )
    return found


STEPS = st.tuples(st.sampled_from(["all", "half", "shift"]), st.integers(1, 5))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(2, 6), st.lists(STEPS, min_size=1, max_size=12))
def test_the_stuck_rank_of_a_random_program_is_named(
    data: st.DataObject, size: int, program: list[Step]
) -> None:
    stuck, place = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, len(program) - 1))
    ranks = run(program, size, stuck, place)
    waits = waits_for({one.rank: one for one in ranks})
    assert stuck not in waits
    if any(waits.values()):
        assert explain(ranks, size).culprits == (stuck,)


COUNTS = st.dictionaries(st.integers(0, 4), st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4)
OPERATIONS = st.builds(
    Operation,
    st.integers(1, 9),
    st.sampled_from(["kernel", "barrier", "all_reduce", WAIT, DEVICE_WAIT]),
    st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
    group=st.sampled_from(["", "world", "world/1.0", "world on device"]),
    sequence=st.integers(0, 3),
)
LABELS = st.sampled_from(["world", "world/1.0", "world on device"])
MEMBERS = st.none() | st.lists(st.integers(0, 4), unique=True).map(tuple)


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(
        st.builds(
            lambda state, operations, collectives, groups, messages: replace(
                rank(0, *operations, collectives=collectives, groups=groups, messages=messages), state=state
            ),
            st.sampled_from(["running", "waiting", "disk", "stopped", "dead"]),
            st.lists(OPERATIONS, max_size=3),
            st.dictionaries(LABELS, st.integers(0, 3)),
            st.dictionaries(LABELS, MEMBERS),
            st.dictionaries(LABELS, COUNTS),
        ),
        max_size=5,
    ),
    st.integers(0, 6),
)
def test_any_recording_is_explained(ranks: list[RankSnapshot], more: int) -> None:
    """Whatever a recorder says, such as after it wrapped or was half written."""
    numbered = [replace(one, rank=number) for number, one in enumerate(ranks)]
    found = explain(numbered, len(ranks) + more)
    assert bool(found.sentences) == bool(len(ranks) + more)
    assert set(found.culprits) <= set(range(len(ranks) + more))
