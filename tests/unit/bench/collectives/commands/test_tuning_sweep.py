"""A sweep over a library whose times, choices and refusals are known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun import World
from meshrun.jobs.bench.collectives import measure, timing
from meshrun.jobs.bench.collectives.commands import tuning_sweep
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.timing import CallTimes
from meshrun.jobs.measure.exit_codes import WrongResults
from meshrun.runner.comm.collectives.api import NcclChoice, NcclTuning
from meshrun.runner.device.api import Device
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.world.failure import FailureHandler

OWN = NcclTuning()
CONTEXT = SimpleNamespace(colour=False, columns=None, words=("bench",))
GPU = Device("cuda", "a GPU", memory=80 << 30, compute_capability=90)


class NcclError(RunError):
    exit_code = 3


class Nccl:
    """Collectives of one rank, opened with a tuning. used: the choice that this library makes with it."""

    label, library = "NCCL 2.28.9", 22809
    spoils: str | None = None  # algorithm whose results are wrong
    refuses = ("allreduce:CollNetDirect", "allreduce:CollNetChain")

    def __init__(self, inner: Any, tuning: NcclTuning) -> None:
        self.inner, self.tuning, self.open = inner, tuning, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def used(self) -> NcclChoice:
        algorithm, protocol = (
            (word or own).rpartition(":")[2]
            for word, own in ((self.tuning.algorithm, "Ring"), (self.tuning.protocol, "Simple"))
        )
        if (algorithm, protocol) == ("Tree", "LL128"):  # not followed
            algorithm = "Ring"
        return NcclChoice(algorithm, protocol, self.tuning.channels or 24)

    def bind(self, call: Any) -> Any:
        make = self.inner.bind(call)

        def made() -> None:
            if self.tuning.algorithm in self.refuses:
                raise NcclError("NCCL failed while starting an operation", got="invalid usage")
            if self.open is not None:
                self.open.append(self.used)
            make()
            if self.spoils and self.used.algorithm == self.spoils and call.count > 4:
                call.recv.bytes(4)[...] ^= 1

        return made

    @contextmanager
    def observed(self) -> Iterator[list[NcclChoice]]:
        found: list[NcclChoice] = []
        self.open = found
        yield found
        self.open = None


def quick_tree(tuning: NcclTuning, size: int, turn: int) -> float:
    """Seconds of the call in the n-th communicator: Tree with LL is 20 % faster, Ring with LL is slower."""
    seconds = 1e-5 * (1 + size / 1e4) * (1 + 0.004 * (turn % 3))
    return seconds * {"Tree/LL": 1 / 1.2, "Ring/LL": 1.5}.get(tuning_sweep.output.name(tuning), 1.0)


@pytest.fixture
def swept(
    on_ranks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Return the printed text, the record, and the tunings that rank 0 opened, of a sweep on two ranks."""

    def run(
        operation: str = "all_reduce",
        times: Callable[[NcclTuning, int, int], float] = quick_tree,
        channels: tuple[int, ...] = (),
        plot: str | None = None,
        nccl: type[Nccl] = Nccl,
        **settings: Any,
    ) -> tuple[str, dict[str, Any], list[NcclTuning]]:
        chosen = {"minbytes": 16, "maxbytes": 256, "stepfactor": 16, "iters": 1, "warmup_iters": 0} | settings
        file = str(tmp_path / "sweep.json")
        options = BenchOptions(
            (operation,), SweepSettings(**chosen), channels=channels, output_file=file,
            plot=plot and str(tmp_path / plot), sweep_tuning=True,
        )  # fmt: skip
        opened: list[NcclTuning] = []
        turns: Counter[tuple[int, NcclTuning]] = Counter()

        def clock(bench: Any, point: Any) -> CallTimes:
            timing.clock(bench, point)  # whose calls are checked too
            turn = turns[bench.group.rank, bench.group.tuning]
            seconds = times(bench.group.tuning, point.bytes, turn)
            return CallTimes(seconds, seconds)

        def body(world: World) -> Any:
            world.ranks = tuple(replace(rank, device=GPU) for rank in world.ranks)
            plain = world.collectives

            def collectives(group: Any, *, tuning: NcclTuning, **ignored: Any) -> Nccl:
                turns[world.rank, tuning] += 1
                if world.rank == 0:
                    opened.append(tuning)
                return nccl(plain(group), tuning)

            world.collectives = collectives
            try:
                return tuning_sweep.run(world, FailureHandler(), options, CONTEXT)
            except WrongResults as wrong:
                return wrong

        monkeypatch.setattr(measure, "clock", clock)
        done = on_ranks(2, body)
        for one in done:
            if isinstance(one, WrongResults):
                raise one
        assert done[0] == {"command": "bench --sweep-tuning", "operations": [operation], "ranks": 2}
        return capsys.readouterr().out, json.loads(Path(file).read_text()), opened

    return run


def test_the_fastest_setting_is_named_with_its_gain(swept: Any) -> None:
    text, record, _ = swept()
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert [row[:4] for row in rows] == [[size, "float", "sum", "Ring/Simple/24"] for size in ("16", "256")]
    assert [(row[6], row[9]) for row in rows] == [("Tree/LL", "20.00")] * 2
    assert (
        "# To set: NCCL_ALGO=allreduce:Tree NCCL_PROTO=allreduce:LL: faster by 20 % in 2 of 2 rows, "
        "slower in none beyond noise"
    ) in text
    [found] = record["operations"]
    assert [row["gain"] for row in found["rows"]] == pytest.approx([0.2, 0.2])
    assert {len(one["seconds"]) for row in found["rows"] for one in row["seconds"]} == {4}


def test_what_nccl_refuses_or_does_not_follow_is_said_and_not_tried_again(swept: Any) -> None:
    text, _, opened = swept()
    assert "# not usable: CollNetDirect/Simple: invalid usage" in text
    assert "# not usable: Tree/LL128: NCCL used Ring/LL128 for 16 B" in text
    refused = NcclTuning("allreduce:Tree", "allreduce:LL128")
    assert Counter(opened) == {
        tuning: 1 if tuning.algorithm in Nccl.refuses or tuning == refused
        else 4
        for tuning in (OWN, *tuning_sweep.candidates("all_reduce", (), 22809))
    }  # fmt: skip
    assert opened[0] == OWN  # and each round begins with another one
    assert opened[11] != OWN


def test_differences_within_noise_are_not_told(swept: Any) -> None:
    text, record, _ = swept(times=lambda *seen: 1e-5 * (1 + (sum(map(ord, repr(seen))) * 7919 % 97) / 970))
    assert "# Set nothing: no setting is faster than NCCL's own choice beyond noise" in text
    assert [row["best"] for row in record["operations"][0]["rows"]] == [None, None]


def test_wrong_data_is_no_gain(swept: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """LL128 forced onto links that cannot carry it spoils data: it is fast, and not usable."""
    spoiling = type("Spoiling", (Nccl,), {"spoils": "Tree"})
    with pytest.raises(WrongResults, match=r"all_reduce: Tree/LL: wrong data, in \d+ checks"):
        swept(nccl=spoiling)
    assert "Set nothing" in capsys.readouterr().out


def test_channels_are_swept_on_request(swept: Any) -> None:
    _, _, opened = swept("broadcast", channels=(4, 16))
    ring = [NcclTuning("broadcast:Ring", f"broadcast:{protocol}") for protocol in ("LL", "LL128", "Simple")]
    assert {*opened} == {
        *(replace(one, channels=count) for one in (OWN, *ring) for count in (None, 4, 16)),
    }


def test_a_failure_of_nccl_s_own_choice_ends_the_run(swept: Any) -> None:
    with pytest.raises(RunError, match="invalid usage"):
        swept(nccl=type("Failing", (Nccl,), {"refuses": (None,)}))


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_heat_map(swept: Any, tmp_path: Path, suffix: str) -> None:
    swept(plot=f"map.{suffix}")
    drawn = (tmp_path / f"map.{suffix}").read_text()
    for word in ("Tree/LL", "NVLSTree/Simple", "120", "67"):
        assert f">{word}<" in drawn


@pytest.mark.parametrize(
    ("operation", "settings", "sentence"),
    [
        ("alltoall", {}, "messages, for which NCCL has no algorithms: got alltoall, expected all_reduce"),
        ("all_reduce", {"run_cycles": 2}, "got -N 2, expected at least 3, or none for 4"),
        ("all_reduce", {"run_cycles": 0}, "got -N 0"),
    ],
)
def test_what_cannot_be_swept(swept: Any, operation: str, settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        swept(operation, **settings)


def test_cpus_have_no_algorithms(on_ranks: Any) -> None:
    options = BenchOptions(("all_reduce",), SweepSettings(), sweep_tuning=True)
    with pytest.raises(UserError, match=r"got ranks that measure host memory. Try: without --sweep-tuning"):
        on_ranks(2, lambda world: tuning_sweep.run(world, FailureHandler(), options, CONTEXT))


def test_older_libraries_get_names_without_the_operation() -> None:
    assert tuning_sweep.candidates("reduce", (), 22399) == [
        NcclTuning("Ring", "LL"), NcclTuning("Ring", "LL128"), NcclTuning("Ring", "Simple")
    ]  # fmt: skip
