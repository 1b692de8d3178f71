"""Start a new output, or resume one that an earlier run left unfinished."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshrun.runner.arrays.inputs import Inputs
from meshrun.runner.errors import RunError, UserError
from meshrun.runner.files import remove_path
from meshrun.runner.options.stream_options import StreamOptions
from meshrun.runner.report.timeline import check_timeline
from meshrun.runner.storage.file_errors import write_error
from meshrun.runner.storage.formats.registry import check_place
from meshrun.runner.storage.journal import Journal
from meshrun.runner.storage.transaction import OutputTransaction
from meshrun.runner.world.world import World

Fingerprint = dict[str, Any]


def find_unfinished(journal: Journal, options: StreamOptions, *partials: Path) -> Fingerprint | None:
    """Return the fingerprint of an unfinished run, None if there is none that finished a chunk. On rank 0.

    Raises UserError if there is one and the run is not resumed. The result stays valid, because this run
    holds the output's lock.
    """
    if options.timeline is not None:
        check_timeline(Path(options.timeline))
        check_place(Path(options.timeline), "timeline")
    kept = journal.kept()
    if kept is None or journal.is_empty():
        return None
    if not options.resume:
        raise journal.unfinished(*partials)
    return kept


def start_or_resume(
    world: World,
    transaction: OutputTransaction,
    journal: Journal,
    partials: Sequence[Path],
    kept: Fingerprint | None,
    wanted: Fingerprint,
    create: Callable[[], None],
    check: Callable[[], None],
) -> set[int]:
    """Start the output, or resume that of `kept`; return the finished chunks. On rank 0.

    create: makes the outputs at `partials` and returns when they are on the disk, because the journal refers
    to them. check: raises UserError if `partials` were not left by an earlier run of this kind.
    """
    done: set[int] = set()
    there = all(os.path.lexists(partial) for partial in partials)
    if kept is not None:
        done = journal.finished({rank.host_id for rank in world.ranks})
        if there or not done:
            journal.check(kept, wanted, *partials)
        if there:
            check()
    if kept is None or not (done or there):
        for partial in partials:
            try:
                remove_path(partial)  # of a run that ended before it had a journal
            except OSError as reason:
                raise write_error(partial, reason) from reason
        transaction.track_partial(*partials)
        create()
        journal.begin(wanted)
        transaction.forget_partial()
        return set()
    if not there:
        gone = next(partial for partial in partials if not os.path.lexists(partial))
        raise UserError(
            f"the unfinished output {gone} is gone",
            hint=f"rm -r {journal.folder}, to start from the beginning, or if {journal.output} is finished",
        )
    return done


def check_inputs(world: World, inputs: Inputs, transaction: OutputTransaction, discard: str) -> None:
    """Raise RunError on every rank if an input file changed during the run. Collective.

    discard: how to discard the unfinished output, since a changed input must not be resumed.
    """
    try:
        inputs.check(world, f"{discard}, then the run again")
    except RunError:
        transaction.set_recovery_hint(None)
        raise
