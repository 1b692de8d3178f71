"""A question to another program, and its answer: sbatch, kubectl, a Python."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

PATIENCE = 60.0  # seconds for an answer


def answer(
    words: Sequence[str], text: str = "", seconds: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """A command run to its end, which gets `text`; after `seconds` one that failed and says so.

    In a session of its own: a Ctrl-C is for this process, which may still have to ask.
    """
    try:
        return subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=seconds, check=False,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"no answer within {seconds:g} s")
