"""Run another program for its output, such as sbatch, kubectl or a Python."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

TIMEOUT = 60.0  # seconds


def query(
    words: Sequence[str],
    text: str = "",
    seconds: float = TIMEOUT,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with `text` as input; a time-out counts as failure, with a message in stderr.

    environment: None for this process's.
    It runs in its own session, so that Ctrl-C reaches only this process, which may need further queries.
    """
    try:
        return subprocess.run(
            words, input=text, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            start_new_session=True, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no answer within {seconds:g} s")
