"""What the command's options say of a streamed run."""

from __future__ import annotations

from dataclasses import dataclass

DEPTH = 3


@dataclass(frozen=True)
class StreamOptions:
    """chunk_bytes: of a chunk's input with its halo. host_memory, device_memory: bytes, of each rank.

    None: chosen. depth: chunks under way. resume: go on with an unfinished run. static: no rank takes over
    chunks of another. timeline: a file to draw the run in.
    """

    chunk_bytes: int | None = None
    host_memory: int | None = None
    device_memory: int | None = None
    depth: int = DEPTH
    resume: bool = False
    static: bool = False
    timeline: str | None = None

    @property
    def named(self) -> str | None:
        """An option that only a streamed run has, if one was given."""
        given = {
            "--chunk-bytes": self.chunk_bytes is not None,
            "--host-memory": self.host_memory is not None,
            "--device-memory": self.device_memory is not None,
            "--depth": self.depth != DEPTH,
            "--resume": self.resume,
            "--static": self.static,
            "--timeline": self.timeline is not None,
        }
        return next((name for name, here in given.items() if here), None)
