"""What every measurement begins with: its ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import runner
from jobs.bench.options import BAD_USAGE


def as_ranks(body: Callable[..., dict[str, Any]], asked: Any, device: Any, debug: bool) -> int:
    """Run `body(world, handler, asked, door)` in every rank; the exit status."""
    door = click.get_current_context().obj
    return runner.run_as_rank(
        lambda world, handler: body(world, handler, asked, door),
        device=device,
        started=door.started,
        debug=debug,
        usage_exit_status=BAD_USAGE,
        interrupt_message="interrupted",
    )
