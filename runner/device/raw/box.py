"""Opens the GPUs of this process, where CuPy may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshrun.runner.errors import UserError

if TYPE_CHECKING:
    from meshrun.runner.device.raw.cuda_memory import Box


def open_box() -> Box:
    """The GPUs of this process; close it when done. Raises UserError without a GPU."""
    from meshrun.runner.device.raw.cuda_memory import Box

    box = Box()
    if not box.gpus:
        raise UserError("this needs a GPU, and CUDA finds none", hint="meshrun doctor shows the reason")
    return box
