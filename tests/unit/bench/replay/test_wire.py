"""The wire's part of operations whose times are known."""

from __future__ import annotations

import pytest

from meshrun.jobs.bench.replay.wire import RanksDiffer, check, time_parts
from meshrun.runner.recorder.operations import LoggedOperation, OperationRecord, RankOperations


def record(
    *ranks: list[LoggedOperation], groups: dict[str, tuple[int, ...]] | None = None
) -> OperationRecord:
    made = [RankOperations("n", 0.0, 10.0, operations) for operations in ranks]
    return OperationRecord("run x", made, groups or {"world": tuple(range(len(ranks)))})


def test_waiting_for_a_late_rank_is_not_the_wire() -> None:
    detail = ("<f4", "sum")
    early = LoggedOperation(1.0, 5.5, "all_reduce", "world", 8, detail)
    late = LoggedOperation(5.0, 5.5, "all_reduce", "world", 8, detail)
    parts = time_parts(record([early], [late]))
    assert (parts.wire, parts.waiting, parts.rest, parts.total) == (1.0, 4.0, 15.0, 20.0)
    assert parts.kinds["all_reduce", 8].each == [0.5, 0.5]


def test_a_broadcast_needs_its_root_only() -> None:
    root = LoggedOperation(2.0, 2.25, "broadcast", "world", 4)
    waits = LoggedOperation(1.0, 2.5, "broadcast", "world", 4)
    late = LoggedOperation(6.0, 6.5, "broadcast", "world", 4)
    parts = time_parts(record([root], [waits], [late]))
    assert (parts.wire, parts.waiting) == (0.25 + 0.5 + 0.5, 1.0)


@pytest.mark.parametrize(("other", "wire", "waiting"), [(3.0, 0.1 + 1.0, 1.0), (1.0, 0.1 + 2.0, 0.0)])
def test_an_exchange_begins_when_both_have_posted(other: float, wire: float, waiting: float) -> None:
    """What a rank computes between an exchange and its wait is neither: that part of the wire is hidden."""

    def exchange(began: float, peer: int) -> LoggedOperation:
        return LoggedOperation(began, began + 0.1, "exchange", "world", 8, (1, [(peer, 8)], [(peer, 8)]))

    mine = [exchange(1.0, 1), LoggedOperation(2.0, 4.0, "wait for messages", "world", 0, (1,))]
    theirs = [exchange(other, 0), LoggedOperation(9.0, 9.0, "wait for messages", "world", 0, (1,))]
    parts = time_parts(record(mine, theirs))
    assert parts.wire == pytest.approx(wire + 0.1)
    assert parts.waiting == pytest.approx(waiting)
    assert parts.kinds["exchange", 8].calls == 2


def test_messages_of_the_same_pair_are_matched_in_order() -> None:
    def message(began: float, ended: float, to: int | None, source: int | None) -> LoggedOperation:
        return LoggedOperation(began, ended, "message", "world raw", 4, (4, to, source))

    mine = [message(0.0, 2.5, 1, None), message(3.0, 3.5, 1, None)]
    theirs = [message(2.0, 2.5, None, 0), message(2.75, 3.5, None, 0)]
    parts = time_parts(record(mine, theirs, groups={"world raw": (0, 1)}))
    assert parts.wire == pytest.approx(0.5 + 0.5 + 0.5 + 0.5)
    assert parts.waiting == pytest.approx(2.0 + 0.25)


def test_a_record_that_would_wait_for_ever() -> None:
    barrier = LoggedOperation(0.0, 1.0, "barrier", "world")
    with pytest.raises(RanksDiffer, match="rank 0 has 2 collectives of 'world' and rank 1 has 1"):
        check(record([barrier, barrier], [barrier]))
    lonely = LoggedOperation(0.0, 1.0, "exchange", "world", 8, (1, [(1, 8)], []))
    with pytest.raises(
        RanksDiffer, match="rank 0 sends 1 messages to rank 1 in 'world', and that receives 0"
    ):
        check(record([lonely], []))
    shorter = LoggedOperation(0.0, 1.0, "exchange", "world", 0, (1, [], [(0, 4)]))
    with pytest.raises(RanksDiffer):
        check(record([lonely], [shorter]))
