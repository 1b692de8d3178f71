"""--transport: which transport measures, and both side by side."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshrun import World
from meshrun.jobs.bench.collectives.commands import run
from meshrun.jobs.bench.collectives.config import BenchOptions, SweepSettings
from meshrun.jobs.bench.collectives.output.reader import read_each
from meshrun.jobs.bench.collectives.session import check_device
from meshrun.runner.errors import UserError
from meshrun.runner.world.failure import FailureHandler

CONTEXT = SimpleNamespace(colour=False, columns=None, words=("bench",))
SIZES = SweepSettings(minbytes=64, maxbytes=256, stepfactor=4, iters=1, warmup_iters=0)


class Labelled:
    def __init__(self, inner: Any, label: str) -> None:
        self.inner, self.label = inner, label

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_both_are_measured_with_a_table_side_by_side(
    on_ranks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "both.json"
    options = BenchOptions(("all_reduce",), SIZES, transport="both", output_file=str(file))

    def body(world: World) -> Any:
        plain = world.collectives
        world.collectives = lambda group, *, transport, **ignored: Labelled(plain(group), f"over {transport}")
        return run.run(world, FailureHandler(), options, CONTEXT)

    on_ranks(2, body)
    text = capsys.readouterr().out
    assert text.index("# backend: over nccl") < text.index("# backend: over mpi")
    table = text[text.index("# all_reduce_perf: nccl and mpi side by side") :].splitlines()
    assert table[1].split() == ["#", "size", "type", "redop", "root", "placement", "nccl", "mpi", "mpi/nccl",
                                "nccl", "mpi"]  # fmt: skip
    rows = [line.split() for line in table[3:] if line != "#"]
    assert [row[1] for row in rows] == ["64", "64", "256", "256"]
    assert [" ".join(row[5:-5]) for row in rows] == 2 * ["out of place", "in place"]
    assert all(line.startswith("#") for line in table)
    assert [*json.loads(file.read_text())["operations"]] == ["all_reduce, nccl", "all_reduce, mpi"]
    assert [len(record.rows) for record in read_each(file).values()] == [2, 2]


def test_one_transport_is_handed_on_and_recorded_as_before(on_ranks: Any, tmp_path: Path) -> None:
    asked = []
    for number, transport in enumerate((None, "mpi")):
        file = tmp_path / f"{number}.json"
        options = BenchOptions(("all_reduce",), SIZES, transport=transport, output_file=str(file))

        def body(world: World, options: BenchOptions = options) -> Any:
            plain = world.collectives

            def collectives(group: Any, **words: Any) -> Any:
                asked.append(words["transport"])
                return plain(group)

            world.collectives = collectives
            return run.run(world, FailureHandler(), options, CONTEXT)

        on_ranks(1, body)
        assert json.loads(file.read_text())["version"] == 3
    assert asked == [None, "mpi"]


@pytest.mark.parametrize(
    ("transport", "sentence"),
    [
        ("nccl", "NCCL carries device memory only: got a rank that measures host memory"),
        ("both", "NCCL carries device memory only"),
        ("mpi", "this process runs without MPI. Try: meshrun -n 2"),
    ],
)
def test_a_transport_that_is_not_here(on_ranks: Any, transport: Any, sentence: str) -> None:
    options = BenchOptions(("all_reduce",), SIZES, transport=transport)
    with pytest.raises(UserError, match=sentence) as refused:
        on_ranks(1, lambda world: run.run(world, FailureHandler(), options, CONTEXT))
    assert refused.value.everywhere


def test_options_of_nccl_are_refused_with_mpi(on_ranks: Any) -> None:
    settings = SweepSettings(cudagraph=1, memory=True)
    with pytest.raises(UserError, match=r"-G: needs NCCL: got --transport mpi\. Try: without -G"):
        on_ranks(1, lambda world: check_device(world, settings, "mpi"))
