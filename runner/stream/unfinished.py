"""An output that an earlier run has left unfinished, or a new one: what is kept of it. On rank 0."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.files import remove_path
from runner.journal import Journal
from runner.report.timeline import check_timeline
from runner.storage import check_place
from runner.storage.faults import write_error
from runner.stream.options import StreamOptions
from runner.transaction import OutputTransaction
from runner.world import World

Identity = dict[str, Any]


def look(journal: Journal, partial: Path, options: StreamOptions) -> Identity | None:
    """The identity of an unfinished run; UserError where there is one that nobody asked to resume.

    This stays true, as this run holds the output.
    """
    if options.timeline is not None:
        check_timeline(Path(options.timeline))
        check_place(Path(options.timeline), "timeline")
    kept = journal.kept()
    if kept is not None and not options.resume:
        raise journal.unfinished(partial)
    return kept


def settle(
    world: World,
    transaction: OutputTransaction,
    journal: Journal,
    partial: Path,
    kept: Identity | None,
    wanted: Identity,
    create: Callable[[], None],
    check: Callable[[], None],
) -> set[int]:
    """Begin the output, or go on with the one of `kept`: what is finished of it.

    create: makes the output at `partial`; on the disk on return, before anything says that it is there.
    check: refuses an output at `partial` that no run of this has left.
    """
    done: set[int] = set()
    there = os.path.lexists(partial)
    if kept is not None:
        journal.check(kept, wanted, partial)
        done = journal.finished({rank.host_id for rank in world.ranks})
        if there:
            check()
    if kept is None or not (done or there):
        try:
            remove_path(partial)  # of a run that ended before its journal was there
        except OSError as reason:
            raise write_error(partial, reason) from reason
        transaction.track_partial(partial)
        create()
        journal.begin(wanted)
        transaction.forget_partial()
        return set()
    if not there:
        raise UserError(
            f"the unfinished output {partial} is gone",
            hint=f"rm -r {journal.folder}, to begin anew, or where {journal.output} is finished",
        )
    return done
