"""Run array work over many GPUs and hosts: what a script, a notebook or a job's file imports.

    map_blocks, reduce_blocks, job     declare a job: a decorator of a plain function
    open_world, World                  the ranks of this program, for code of your own
    BlockContext                       a job's parameter `here`: the block's place, random numbers by cell
    Tiles                              an array in pieces that do not depend on the number of ranks
    read_block, write_block            this rank's part of an array that is split over the ranks
    matmul                             the product of arrays that are split over the ranks
    fft, ifft, rfft, irfft, transpose  of an array that is split over the ranks, or of a whole one
    FourierPlan                        Fourier transforms of many arrays of one shape
    kernel                             a CUDA kernel of a .cu file, compiled for this rank's GPU
    MeshrunError, UserError, RunError, BadResult
                                       any error; a mistake in what was asked for; a failure; a wrong result
    __version__                        of the installed package, such as "1.2.0"

Each name is loaded when it is first used, so that `import meshrun` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.linalg.matmul.blocks import matmul as matmul
    from jobs.transforms.fourier import fft as fft
    from jobs.transforms.fourier import ifft as ifft
    from jobs.transforms.fourier import irfft as irfft
    from jobs.transforms.fourier import rfft as rfft
    from jobs.transforms.fourier_plan import FourierPlan as FourierPlan
    from jobs.transforms.transpose import transpose as transpose
    from runner.device.kernel_file import kernel as kernel
    from runner.errors import BadResult as BadResult
    from runner.errors import MeshrunError as MeshrunError
    from runner.errors import RunError as RunError
    from runner.errors import UserError as UserError
    from runner.job.block_context import BlockContext as BlockContext
    from runner.pipeline.load import read_block as read_block
    from runner.pipeline.reduce import Tiles as Tiles
    from runner.pipeline.store import write_block as write_block
    from runner.run.declare import job as job
    from runner.run.declare import map_blocks as map_blocks
    from runner.run.declare import reduce_blocks as reduce_blocks
    from runner.world.world import World as World
    from runner.world.world import open_world as open_world

    __version__: str

_MODULE_OF = {
    "map_blocks": "runner.run.declare",
    "reduce_blocks": "runner.run.declare",
    "job": "runner.run.declare",
    "open_world": "runner.world.world",
    "World": "runner.world.world",
    "BlockContext": "runner.job.block_context",
    "Tiles": "runner.pipeline.reduce",
    "read_block": "runner.pipeline.load",
    "write_block": "runner.pipeline.store",
    "matmul": "jobs.linalg.matmul.blocks",
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft"), "jobs.transforms.fourier"),
    "FourierPlan": "jobs.transforms.fourier_plan",
    "transpose": "jobs.transforms.transpose",
    "kernel": "runner.device.kernel_file",
    "MeshrunError": "runner.errors",
    "UserError": "runner.errors",
    "RunError": "runner.errors",
    "BadResult": "runner.errors",
}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("meshrun")
    if name not in _MODULE_OF:
        from difflib import get_close_matches

        close = get_close_matches(name, _MODULE_OF, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise AttributeError(f"module 'meshrun' has no attribute {name!r}{meant}", name=name)
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
