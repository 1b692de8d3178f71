"""Start a run again with the ranks that are left, after one was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launch.supervise.supervisor import RankLostError

RESUME = "--resume"


def with_restarts(
    start: Callable[[int, Sequence[str], bool], int], ranks: int, words: Sequence[str], restarts: int
) -> int:
    """Start a run, and again with a rank less each time that one is lost; returns its exit status.

    start: runs `words` as so many ranks; it raises RankLostError for a lost rank if its last argument is
    true. restarts: how often at most. A run that has kept checkpoints or chunks continues with them, another
    one begins again.
    """
    from runner.errors import tell

    for number in range(1, restarts + 1):
        if ranks == 1:
            break
        try:
            return start(ranks, words, True)
        except RankLostError as loss:
            ranks -= 1
            words = resumed(words) if loss.resumable else words
            kept = "continuing with what is complete" if loss.resumable else "from the beginning"
            tell(str(loss))
            tell(f"starting again on {ranks} rank{'s'[: ranks > 1]}, {kept} (restart {number} of {restarts})")
    return start(ranks, words, False)


def resumed(words: Sequence[str]) -> list[str]:
    """Return the words of a command `run JOB ...` with --resume, before those that may follow a `--`."""
    return [*words] if RESUME in words else [*words[:2], RESUME, *words[2:]]
