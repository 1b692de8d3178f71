"""Options of streamed runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshrun.runner.options.table import first_given, row
from meshrun.runner.options.values import CountValue, FlagValue, SizeValue, TextValue

DEPTH = 3
DEPTH_MOST = 1024  # chunks in flight: each has a thread and buffers of its own


@dataclass(frozen=True)
class StreamOptions:
    """Options of a streamed run; None: chosen by the planner."""

    chunk_bytes: int | None = row(SizeValue(), "Process the array in chunks of this size.", metavar="SIZE")
    host_memory: int | None = row(SizeValue(), "Host memory for the chunks of each rank.", metavar="SIZE")
    device_memory: int | None = row(SizeValue(), "GPU memory for the chunks of each rank.", metavar="SIZE")
    depth: int | None = row(
        CountValue(DEPTH_MOST, texts=True), "Chunks in flight.", metavar="N", default_text=str(DEPTH)
    )
    resume: bool = row(FlagValue(), "Continue an unfinished run of the same job.", default=False)
    static: bool = row(FlagValue(), "Do not move chunks from slower ranks to faster ones.", default=False)
    timeline: str | None = row(
        TextValue(paths=True), "Write a timeline: .html, or .json for Perfetto.", metavar="FILE"
    )

    @property
    def under_way(self) -> int:
        """Chunks in flight at once."""
        return self.depth or DEPTH

    @cached_property
    def named(self) -> str | None:
        """The first given option that applies only to streamed runs, as `option` spells it."""
        return first_given(self)
