"""Pairs of ranks: their order, numbers of messages, and the detection of wrong data."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrun import World
from meshrun.jobs.bench.collectives.commands import pingpong
from meshrun.jobs.bench.collectives.commands.pingpong import parse_pairs
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.runner.comm.collectives.api import DATATYPES, Call
from meshrun.runner.errors import UserError
from meshrun.runner.world.failure import FailureHandler

DOOR = SimpleNamespace(colour=False, columns=None, words=("meshrun", "bench", "pingpong"))
NAP = 0.005  # seconds


@pytest.mark.parametrize(
    ("text", "ranks", "pairs"),
    [
        ("ends", 2, [(0, 1)]),
        ("ends", 7, [(0, 6)]),
        ("all", 2, [(0, 1)]),
        ("all", 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("0-3", 4, [(0, 3)]),
        ("3-0, 1-2", 4, [(3, 0), (1, 2)]),
        ("0-1,0-1", 2, [(0, 1), (0, 1)]),
    ],
)
def test_pairs(text: str, ranks: int, pairs: list[tuple[int, int]]) -> None:
    assert parse_pairs(text, ranks) == pairs


@pytest.mark.parametrize(
    "text", ["", "0", "0-0", "0-4", "0-1-2", "0-1,", "a-b", "-1-0", "0--1", "0:1", "some"]
)
def test_pairs_that_do_not_parse_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--pairs does not parse.* such as 0-1,0-3: ranks below 4"):
        parse_pairs(text, 4)


@given(st.text("0123456789-, al", max_size=12), st.integers(2, 9))
def test_pairs_are_of_two_ranks_or_refused(text: str, ranks: int) -> None:
    with contextlib.suppress(UserError):
        pairs = parse_pairs(text, ranks)
        assert pairs
        assert all(0 <= rank < ranks for pair in pairs for rank in pair)
        assert all(one != other for one, other in pairs)


def test_one_rank_is_refused() -> None:
    with pytest.raises(UserError, match=r"pingpong needs two ranks: got 1\. Try: meshrun -n 2"):
        parse_pairs("ends", 1)


@pytest.fixture
def played(on_ranks: Any, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Return the record of a run; `wrap` wraps every rank's collectives."""

    def run(ranks: int, pairs: str = "ends", wrap: Any = None, **settings: Any) -> list[dict[str, Any]]:
        file = tmp_path / "pingpong.json"
        file.unlink(missing_ok=True)
        chosen = {"minbytes": 64, "maxbytes": 64, "stepfactor": 2, "iters": 2} | settings
        options = BenchOptions(("pingpong",), SweepSettings(**chosen), output_file=str(file), pairs=pairs)

        def body(world: World) -> Any:
            try:
                return pingpong.run(world, FailureHandler(), options, DOOR)
            except pingpong.WrongResults as wrong:
                return wrong  # every rank ends in order, and rank 0 has printed everything

        done = on_ranks(ranks, body, wrap=wrap)
        if isinstance(done[0], pingpong.WrongResults):
            assert {str(wrong) for wrong in done} == {str(done[0])}
            raise done[0]
        assert done == [{"command": "bench", "operations": ["pingpong"], "ranks": ranks}] * ranks
        document = json.loads(file.read_text())
        assert len(document["ranks"]) == ranks
        results: list[dict[str, Any]] = document["results"]
        return results

    return run


def test_every_pair_plays_every_type_and_size(played: Any, capsys: pytest.CaptureFixture[str]) -> None:
    results = played(3, "2-0,0-1", minbytes=8, maxbytes=32, stepfactor=4, datatypes=("half", "double"))
    assert [(r["source"], r["target"], r["datatype"], r["size"], r["count"]) for r in results] == [
        (2, 0, "half", 8, 4), (2, 0, "half", 32, 16), (2, 0, "double", 8, 1), (2, 0, "double", 32, 4),
        (0, 1, "half", 8, 4), (0, 1, "half", 32, 16), (0, 1, "double", 8, 1), (0, 1, "double", 32, 4),
    ]  # fmt: skip
    assert {r["wrong"] for r in results} == {0}
    assert all(r["latency"] > 0 and r["one_way"] > 0 and r["two_way"] > 0 for r in results)
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line[:5] for line in printed] == [
        [str(r[key]) for key in ("size", "count", "datatype", "source", "target")] for r in results
    ]


class Counted:
    """Count one rank's messages: (to, from, bytes)."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.made = inner, Counter[tuple[int | None, int | None, int]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def message(self, call: Call, *, send_to: int | None = None, receive_from: int | None = None) -> Any:
        make = self.inner.message(call, send_to=send_to, receive_from=receive_from)
        key = (send_to, receive_from, call.count * call.datatype.itemsize)

        def made() -> None:
            self.made[key] += 1
            make()

        return made


def test_messages_are_as_many_as_the_iterations(played: Any) -> None:
    """Each of three patterns is measured three times, each time after one exchange that synchronises both."""
    groups: dict[int, Counted] = {}

    def wrap(group: Any) -> Any:
        groups[group.rank] = Counted(group)
        return groups[group.rank]

    played(3, "0-2", wrap, iters=5, warmup_iters=4)
    assert groups[0].made == {
        (2, None, 64): 4 + 3 * 5 + 3 * 5,  # warm-up, there and back, one way
        (None, 2, 64): 4 + 3 * 5,  # warm-up, there and back
        (None, 2, 16): 3,  # one way's answers
        (2, 2, 64): 3 * 3 + 3 * 5 + 1,  # in step, two-way, the check
    }
    assert groups[2].made == {
        (None, 0, 64): 4 + 3 * 5 + 3 * 5,
        (0, None, 64): 4 + 3 * 5,
        (0, None, 16): 3,
        (0, 0, 64): 3 * 3 + 3 * 5 + 1,
    }
    assert groups[1].made == {}


@pytest.mark.parametrize("datatype", [*DATATYPES])
def test_an_answer_fits_whatever_the_size(played: Any, datatype: str) -> None:
    """A buffer of one byte would not hold the 16 bytes that end one way."""

    def wrap(group: Any) -> Any:
        class Checked(Counted):
            def message(self, call: Call, **peers: int | None) -> Any:
                end = call.count * call.datatype.itemsize
                assert call.send.offset + end <= call.send.buffer.nbytes
                assert call.recv.offset + end <= call.recv.buffer.nbytes
                return super().message(call, **peers)

        return Checked(group)

    results = played(2, wrap=wrap, minbytes=1, maxbytes=2, datatypes=(datatype,))
    width = DATATYPES[datatype].itemsize
    assert [r["count"] for r in results] == [1 // width, 2 // width]
    assert [r["wrong"] for r in results] == [0, 0]
    assert all((r["one_way"] > 0) == (r["size"] > 0) for r in results)


@pytest.mark.timed
def test_what_the_figures_mean(played: Any, disturbed: Any) -> None:
    """Every message sent sleeps: check half a round trip, one-way and two-way bandwidth."""

    def wrap(group: Any) -> Any:
        return Napping(group)

    class Napping(Counted):
        def message(self, call: Call, **peers: int | None) -> Any:
            make = super().message(call, **peers)
            return make if "send_to" not in peers else lambda: (time.sleep(NAP), make())

    [result] = played(2, wrap=wrap, minbytes=1 << 20, maxbytes=1 << 20, iters=6)
    sent = (1 << 20) / 1e9  # GB
    assert result["latency"] > NAP  # two sleeps there and back, half of which count
    assert result["one_way"] < sent / NAP
    assert result["two_way"] < 2 * sent / NAP
    # A message takes as long either way; one way has an answer to each six.
    assert 0.5 < result["one_way"] * result["latency"] / sent < 1.3
    assert result["two_way"] > 1.2 * result["one_way"]  # both directions in one sleep


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("datatype", [*DATATYPES])
def test_a_flipped_bit_is_found(
    played: Any, disturbed: Any, capsys: pytest.CaptureFixture[str], datatype: str, victim: int
) -> None:
    """On either end of the pair, with the flipped element and its expected value."""
    width, seen = DATATYPES[datatype].itemsize, []

    def flip(call: Call) -> None:
        if call.count == 64 // width:
            words = call.recv.bytes(64).view(f"u{width}")
            right = int(words[5])
            words[5] ^= words.dtype.type(1)
            seen[:] = [right, int(words[5])]

    def wrap(group: Any) -> Any:
        return disturbed(group, after=flip) if group.rank == victim else group

    with pytest.raises(pingpong.WrongResults) as raised:
        played(3, "0-2", wrap, datatypes=(datatype,))
    right, got = seen
    sentence = str(raised.value)
    assert f"[rank {victim}, host " in sentence
    assert f"1 elements of rank {2 - victim}'s wrong, first at 5: got " in sentence
    assert f"(0x{got:0{2 * width}x}), expected " in sentence
    assert f"(0x{right:0{2 * width}x})" in sentence
    assert sentence.count("[rank") == 1
    assert raised.value.everywhere
    shown = capsys.readouterr().out
    assert shown.splitlines()[-3].split()[-1] == "1"
    assert "# Out of bounds values : 1 FAILED" in shown


def test_a_message_that_does_not_arrive_is_found(played: Any, disturbed: Any) -> None:
    """Only the last message, which is checked: earlier ones carry the same data."""
    made, memory = [], bytearray(64)

    def before(call: Call) -> None:
        made.append(call)
        memory[:] = bytes(call.recv.bytes(64))

    def after(call: Call) -> None:
        # 2 there and back, and the same timed; then one way with its answer, then both ways.
        if len(made) == 2 + 3 * (1 + 4) + 3 * (1 + 3) + 3 * (1 + 2) + 1:
            call.recv.bytes(64)[...] = memory

    def wrap(group: Any) -> Any:
        return disturbed(group, before, after) if group.rank == 1 else group

    with pytest.raises(pingpong.WrongResults, match=r"16 elements of rank 0's wrong, first at 0: got .*0xa5"):
        played(2, wrap=wrap)


def test_a_message_of_ones_own_is_found(played: Any, disturbed: Any) -> None:
    """A rank finds the data that it sent instead of the data sent to it."""

    def echo(call: Call) -> None:
        call.recv.bytes(64)[...] = call.send.bytes(64)

    def wrap(group: Any) -> Any:
        return disturbed(group, after=echo) if group.rank == 1 else group

    with pytest.raises(pingpong.WrongResults, match=r"16 elements of rank 0's wrong, first at 0"):
        played(2, wrap=wrap)


def test_without_checks_nothing_is_found(played: Any, disturbed: Any) -> None:
    def wrap(group: Any) -> Any:
        return disturbed(group, after=lambda call: call.recv.bytes(16).fill(0))

    [result] = played(2, wrap=wrap, check=0, warmup_iters=0)
    assert result["wrong"] is None
