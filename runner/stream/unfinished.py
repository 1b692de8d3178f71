"""An output that an earlier run has left unfinished, or a new one: what is kept of it. On rank 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.ending import Ending
from runner.errors import UserError
from runner.journal import Journal
from runner.report.timeline import check_timeline
from runner.storage import remove_partial
from runner.stream.options import StreamOptions
from runner.world import World

Identity = dict[str, Any]


def look(journal: Journal, partial: Path, options: StreamOptions, ending: Ending) -> Identity | None:
    """The identity of an unfinished run; UserError where there is one that nobody asked to resume.

    Holds the output from now on, so that this stays true.
    """
    if options.timeline is not None:
        check_timeline(Path(options.timeline))
    ending.hold(journal.output)
    kept = journal.kept()
    if kept is not None and not options.resume:
        raise journal.unfinished(partial)
    return kept


def settle(
    world: World,
    ending: Ending,
    journal: Journal,
    partial: Path,
    kept: Identity | None,
    wanted: Identity,
    create: Callable[[], None],
) -> set[int]:
    """Begin the output, or go on with the one of `kept`: what is finished of it.

    create: makes the output at `partial`; on the disk on return, before anything says that it is there.
    """
    done: set[int] = set()
    if kept is not None:
        journal.check(kept, wanted, partial)
        done = journal.finished({rank.host_id for rank in world.ranks})
    if kept is None or not (done or partial.exists()):
        remove_partial(partial)  # of a run that ended before its journal was there
        ending.unfinished(partial)
        create()
        journal.begin(wanted)
        ending.unfinished(None)
        return set()
    if not partial.exists():
        raise UserError(
            f"the unfinished output {partial} is gone",
            hint=f"rm -r {journal.folder}, to begin anew, or where {journal.output} is finished",
        )
    return done
