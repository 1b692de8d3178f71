"""Records and logs that can be read, and the sentence for each that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshrun.jobs.bench.replay.source import read_source
from meshrun.runner.errors import UserError
from meshrun.runner.recorder.operations import LoggedOperation, RankOperations, rank_text, record_text


def text() -> str:
    operations = [
        LoggedOperation(1.0, 2.0, "barrier", "world"),
        LoggedOperation(2.0, 3.0, "alltoallv", "world raw", 4, (1, "float", "sum", 0, ((0, 1), (1, 0)))),
    ]
    ranks = [rank_text(RankOperations("n1", 0.5, 4.0, operations), offset) for offset in (0.0, 0.25)]
    return record_text("run heat", {"world": (0, 1), "world raw": (0, 1)}, 3, ranks)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text())
    record = read_source(tmp_path / "r.json")
    assert (record.command, record.others, record.timed) == ("run heat", 3, True)
    assert record.groups == {"world": (0, 1), "world raw": (0, 1)}
    assert [rank.seconds for rank in record.ranks] == [3.5, 3.5]
    assert record.ranks[1].operations[0].began == 0.75  # on rank 0's clock
    assert record.ranks[0].operations[1].detail == (1, "float", "sum", 0, [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (text()[:-60], "is damaged or cut off"),
        (
            text().replace('"version": 1', '"version": 2'),
            "record of version 2, and this meshrun reads version 1",
        ),
        ('{"program": "all_reduce_perf"}', "is JSON, but no record of operations"),
        (text().replace('"barrier", "world", 0', '"barrier", "world", -1'), "negative size"),
        (text().replace("1.0, 2.0", "2.0, 1.0"), "negative size or duration"),
        (text().replace('"barrier"', "7, 8, 9"), "entry that is not valid"),
        (
            text().replace(
                ', [2.0, 3.0, "alltoallv", "world raw", 4, 1, "float", "sum", 0, [[0, 1], [1, 0]]]', "", 1
            ),
            "is not whole",
        ),
        (text().replace('"barrier", "world",', '"barrier", "elsewhere",'), "not valid"),
        (text().replace("[[0, 2, 1]]", "[[0, 9, 2]]").replace("[[0, 1, 2]]", "[[0, 9, 2]]"), "not valid"),
        (record_text("run x", {}, 0, [rank_text(RankOperations("n", 0.0, 1.0), 0.0)]), "has no operations"),
        ("hello\nworld\n", "neither a record of meshrun nor a log of NCCL"),
        ("meshrun1\0\0\0", "memory of a flight recorder"),
    ],
)
def test_bad_records(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(UserError) as caught:
        read_source(tmp_path / "r.json")
    assert sentence in str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_source(tmp_path / "none")


def call(
    pid: int, name: str, count: int, root: int = 0, comm: str = "0x5", ranks: int = 2, op: int = 0
) -> str:
    return (
        f"n1:{pid}:9 [{pid}] NCCL INFO {name}: opCount 2 sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 "
        f"op {op} root {root} comm {comm} [nranks={ranks}] stream 0x9\n"
    )


def joined(pid: int, rank: int, comm: str = "0x5") -> str:
    return f"n1:{pid}:9 [0] NCCL INFO ncclCommInitRank comm {comm} rank {rank} nranks 2 - Init COMPLETE\n"


def test_a_log_of_one_rank_stands_for_all(tmp_path: Path) -> None:
    log = "2026-01-01 noise\n" + call(0, "AllReduce", 256, op=2) + call(0, "Broadcast", 8, root=1)
    (tmp_path / "log").write_text(log)
    record = read_source(tmp_path / "log")
    assert not record.timed
    assert len(record.ranks) == 2
    for rank in record.ranks:
        assert [(one.name, one.nbytes, one.detail) for one in rank.operations] == [
            ("all_reduce", 1024, (256, "float", "max", 0, None)),
            ("broadcast", 32, (8, "float", "sum", 1, None)),
        ]


def test_messages_of_a_log_are_exchanges(tmp_path: Path) -> None:
    """The lines of its start say which rank a process is: here the later one is rank 0."""
    log = joined(4, 1).replace("[0]", "[4]") + joined(3, 0).replace("[0]", "[3]")
    log += call(4, "Send", 3, root=0) + call(4, "Recv", 5, root=0) + call(4, "AllReduce", 1)
    log += call(3, "Recv", 3, root=1) + call(3, "Send", 5, root=1) + call(3, "AllReduce", 1)
    (tmp_path / "log").write_text(log)
    zero, one = read_source(tmp_path / "log").ranks
    assert zero.operations[0].detail == (1, [(1, 20)], [(1, 12)])
    assert one.operations[0].detail == (1, [(0, 12)], [(0, 20)])
    assert [each.name for each in zero.operations] == ["exchange", "wait for messages", "all_reduce"]


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (call(0, "Send", 3, root=1), "messages (Send, Recv) of 1 of 2 ranks"),
        (call(0, "Magic", 3), "has Magic, which a replay cannot repeat"),
        (call(0, "AllReduce", 3).replace("datatype 7", "datatype 99"), "datatype 99"),
        (call(0, "AllReduce", 3) + call(1, "AllReduce", 3, ranks=4), "communicators of 2, 4 ranks"),
        (joined(0, 0) + joined(0, 0, "0x6") + call(0, "AllReduce", 1) + call(0, "AllReduce", 1, comm="0x6"),
         "more than one communicator"),
        (call(0, "AllReduce", 1) + call(1, "AllGather", 1), "is not whole"),
    ],
)  # fmt: skip
def test_logs_that_cannot_be_repeated(tmp_path: Path, log: str, sentence: str) -> None:
    (tmp_path / "log").write_text(log)
    with pytest.raises(UserError) as caught:
        read_source(tmp_path / "log")
    assert sentence in str(caught.value)
