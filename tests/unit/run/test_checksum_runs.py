"""`--checksum`: runs end at the first damaged array, and otherwise write the same bytes as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaging_comm import DamagingComm

import meshrun
from meshrun.runner.comm.checksum.checked import Damaged
from meshrun.runner.comm.threads import ThreadComm, run_ranks
from meshrun.runner.errors import RunError
from meshrun.runner.options.choices import Checksum
from meshrun.runner.options.step_options import StepOptions
from meshrun.runner.report.summary import render
from meshrun.runner.run.execute import Options, run
from meshrun.runner.world.world import open_world

STEPS = 6


@meshrun.map_blocks(halo=1, boundary="nearest")
def smooth(block: Any) -> Any:
    return (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4


def stepped(folder: Path, ranks: int, choice: Checksum, fault: str = "", **more: Any) -> list[Any]:
    """For each rank, its record or its error."""
    if not (folder / "in.npy").exists():
        np.save(folder / "in.npy", np.random.default_rng(0).random((24, 30)))
    options = Options(device="cpu", checksum=choice, fuse="off", steps=StepOptions(STEPS), **more)

    def rank(control: ThreadComm) -> Any:
        # The first exchange of halos fills those of the input: the fourth message is of step 3.
        damaging = DamagingComm(control.hub, control.rank, fault, number=4 if fault else 0)
        try:
            world = open_world("cpu", control=damaging)
            return run(smooth, folder / "in.npy", folder / f"{choice}.npy", {}, options, world=world)
        except RunError as failure:
            return failure

    return run_ranks(ranks, rank)


@pytest.mark.parametrize(("ranks", "more"), [(1, {}), (3, {}), (3, {"overlap": True}), (4, {"grid": "2x2"})])
def test_the_bytes_are_the_same_and_the_record_says_what_was_checked(
    tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    off = stepped(tmp_path, ranks, "off", **more)[0]
    checked = stepped(tmp_path, ranks, "full", **more)[0]
    sampled = stepped(tmp_path, ranks, "sample", **more)[0]
    written = [(tmp_path / f"{one}.npy").read_bytes() for one in ("off", "full", "sample")]
    assert written[0] == written[1] == written[2]
    assert off["checksum"] is None
    assert checked["checksum"]["mode"] == "full"
    assert sampled["checksum"]["mode"] == "sample"
    exchanged = {1: 0, 3: 4, 4: 8}[ranks]  # messages of one exchange of all ranks; one is of the input
    assert checked["checksum"]["messages"] >= exchanged * STEPS
    assert sampled["checksum"]["messages"] <= checked["checksum"]["messages"]
    assert "checksums (all): " in render(checked)
    assert ("arrived as sent" in render(checked)) == (checked["checksum"]["messages"] > 0)
    assert ("no message between ranks" in render(sampled)) == (sampled["checksum"]["messages"] == 0)
    assert "checksums" not in render(off)


@pytest.mark.parametrize("fault", ["bit", "old"])
def test_a_damaged_halo_ends_the_run_on_all_ranks(
    tmp_path: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    right = stepped(tmp_path, 3, "off")
    assert not any(isinstance(one, RunError) for one in right)
    before = np.load(tmp_path / "off.npy")
    assert not any(isinstance(one, RunError) for one in stepped(tmp_path, 3, "off", fault))
    assert not np.array_equal(np.load(tmp_path / "off.npy"), before)  # wrong, and nobody knows
    capfd.readouterr()
    found = stepped(tmp_path, 3, "full", fault)
    assert all(isinstance(one, RunError) for one in found)
    assert isinstance(found[1], Damaged)
    said = capfd.readouterr().err
    assert "has not received what rank 0 (" in said
    assert "in the halo exchange of step 3: got checksum 0x" in said
    assert " of 240 bytes (message " in said
    assert said.startswith("meshrun: [rank 1, ")  # ranks of MPI have no second line: they are killed
    assert not (tmp_path / "all.npy").exists()
