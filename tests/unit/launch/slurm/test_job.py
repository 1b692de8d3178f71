"""What a job leaves in the working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.slurm import job as slurm_job


def test_the_notes_of_a_job_are_removed_with_those_that_were_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("meshrun-17.lost", "meshrun-17_3.lost", ".meshrun-17_3.lost.0123456789abcdef.partial"):
        (tmp_path / name).touch()
    slurm_job._remove_notes("17", "17_*")
    assert os.listdir(tmp_path) == []
