"""`meshrun bench copy` on a simulated host, with one process for all GPUs or one for each, as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_box import MadeBox, MadeHost, load

import meshrun
import meshrun.jobs.kernels
from meshrun.jobs.bench.copy import engines
from meshrun.jobs.bench.copy.run import CopyOptions, run
from meshrun.jobs.bench.nvbandwidth import run as nvbandwidth_run
from meshrun.jobs.bench.nvbandwidth.run import NvbandwidthOptions
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import MeshrunError

SIZE = 1 << 16


@dataclass
class Ended:
    """Output of rank 0, record and failure. boxes: of every rank."""

    text: str = ""
    failure: BaseException | None = None
    boxes: list[MadeBox] = field(default_factory=list)

    def rows(self, key: str) -> list[list[str]]:
        """Return the cells of the matrix whose sum is called `key`, without row numbers."""
        lines = self.text.splitlines()
        end = next(number for number, line in enumerate(lines) if line.startswith(f"SUM {key} ")) - 1
        begin = max(
            number for number in range(end) if "bandwidth (" in lines[number] or "(ns)" in lines[number]
        )
        return [line.split()[1:] for line in lines[begin + 2 : end]]


Run = Callable[..., Ended]


@pytest.fixture
def bench_copy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(meshrun.jobs.kernels, "load", load)
    monkeypatch.setattr(engines, "SMALL", SIZE)  # otherwise the streaming kernel would need 64 MiB
    mine = threading.local()
    for module in ("copy", "nvbandwidth"):
        monkeypatch.setattr(f"meshrun.jobs.bench.{module}.run.open_box", lambda: mine.box)
    monkeypatch.setattr("meshrun.jobs.bench.copy.outliers.gpu_links", links)

    def bench(
        host: MadeHost,
        *names: str,
        ranks: int = 1,
        visible: Sequence[Sequence[int]] | None = None,
        hosts: Sequence[str] | None = None,
        others: Sequence[MadeHost] = (),
        like_nvbandwidth: bool = False,
        **words: Any,
    ) -> Ended:
        """visible: the GPUs that each rank sees, all by default. others: the hosts after the first.
        like_nvbandwidth: run `meshrun nvbandwidth`."""
        ended = Ended()

        def on_rank(control: ThreadComm) -> None:
            world = meshrun.open_world("cpu", control=control)
            named = hosts or ["made"] * ranks
            machine = dict(zip(dict.fromkeys(named), (host, *others), strict=True))
            locals_ = [named[:rank].count(named[rank]) for rank in range(ranks)]
            seen = visible[world.rank] if visible else None
            mine.box = MadeBox(machine[named[world.rank]], seen)
            ended.boxes.append(mine.box)
            world.ranks = tuple(
                replace(
                    rank,
                    host=named[rank.number],
                    host_id=named[rank.number],
                    device=replace(
                        rank.device,
                        kind="cuda",
                        index=0 if visible and len(visible[rank.number]) == 1 else locals_[rank.number],
                    ),
                )
                for rank in world.ranks
            )
            cli_context = SimpleNamespace(colour=False, columns=None, words=("copy",))
            few = {"size": SIZE, "copies": 2, "samples": 3, "accesses": 400}
            ending: Any = SimpleNamespace()
            if like_nvbandwidth:
                theirs = NvbandwidthOptions(names=names, **{**few, **words})
                nvbandwidth_run.run(world, ending, theirs, cli_context)
            else:
                run(world, ending, CopyOptions(names=names, **{**few, **words}), cli_context)

        try:
            run_ranks(ranks, on_rank)
        except MeshrunError as failure:
            ended.failure = failure
        ended.text = capsys.readouterr().out
        return ended

    return bench


def links(uuid: str) -> Any:
    reading = SimpleNamespace(rate=None, source="NVML: not here")
    return SimpleNamespace(nvlink=reading, pcie=reading, nvlinks_active=0)
