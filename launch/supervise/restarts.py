"""Start a run again on what is left, after a rank or a host was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshrun.launch.spec import LaunchSpec
from meshrun.launch.supervise.supervisor import LossError

RESUME = "--run-resume"  # its name for every job


def with_restarts(start: Callable[[LaunchSpec, bool], int], spec: LaunchSpec, restarts: int) -> int:
    """Start a run, and again each time that a rank or a host of it is lost; returns its exit status.

    start: runs a specification; it raises LossError for a loss if its last argument is true. restarts: how
    often at most. A run that has kept checkpoints or chunks continues with them, another one begins again,
    and makes the frames again that are in its folder.
    """
    from meshrun.runner.errors import tell

    for number in range(1, restarts + 1):
        try:
            return start(spec, True)
        except LossError as loss:
            left = replace(loss.left, words=tuple(resumed(spec.words))) if loss.keeps_files else loss.left
            kept = "continuing with what is complete" if loss.resumable else "from the beginning"
            if sentence := str(loss):
                tell(sentence)
            tell(f"starting again {_place(spec, left)}, {kept} (restart {number} of {restarts})")
            spec = left
    return start(spec, False)


def resumed(words: Sequence[str]) -> list[str]:
    """Return the words of a command `run JOB ...` with --resume, before those that may follow a `--`."""
    return [*words] if RESUME in words else [*words[:2], RESUME, *words[2:]]


def _place(before: LaunchSpec, after: LaunchSpec) -> str:
    ranks = f"{after.ranks} rank{'s'[: after.ranks > 1]}"
    if before.hosts == 1:
        return f"on {ranks}"
    lost = ", ".join(name for name in before.names if name not in after.names)
    return f"without {lost}, on {ranks} of {after.hosts} host{'s'[: after.hosts > 1]}"
