"""The command on words, as a user types them, but in this process: a process of its own costs half a second.

    typed("run", "laplacian", "in.npy", "out.npy")
    typed("bench", "all_reduce", environment={"NCCL_TESTS_SPLIT": "OR 5"})

One rank, no launcher. What only a process has is not there: signals that end it, and a terminal.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

import meshrun.runner.world.rank_process
from meshrun.launch.cli.main import main
from meshrun.runner.system.launcher import RANK_ONLY, VARIABLES

LAUNCHERS = tuple(name for _, *names in (*VARIABLES, *RANK_ONLY) for name in names)


def typed(*words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`meshrun` on `words` here. environment: what changes in this process's for it."""
    out, errors = Stream(), Stream()
    with (
        patch.dict(os.environ, environment or {}),
        patch.object(sys, "path", sys.path.copy()),  # a job's file adds its folder
        patch.object(sys, "dont_write_bytecode", True),  # of that file, beside it
        patch.object(
            meshrun.runner.world.rank_process, "on_termination", lambda action: None
        ),  # its signals are pytest's
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        for name in LAUNCHERS:
            os.environ.pop(name, None)
        try:
            status = main(words)
        except SystemExit as ending:
            status = int(ending.code or 0)
    return subprocess.CompletedProcess(words, status, out.text(), errors.text())


class Stream(io.TextIOWrapper):
    """A pipe's end, as text."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()
