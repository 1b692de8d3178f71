"""Run array work over many GPUs and hosts: what a script, a notebook or a job's file imports.

    distribute                         run a NumPy function of whole arrays: a decorator
    map_blocks, reduce_blocks, job     declare a job of blocks: a decorator of a plain function
    open_world, World                  the ranks of this program, for code of your own
    checkpoint                         save the state of a loop every so often, and restore it
    BlockContext                       a job's parameter `here`: the block's place, random numbers by cell
    Series                             the type of a parameter that is a table in time: `wavelet[step]`
    Tiles                              an array in pieces that do not depend on the number of ranks
    load, save, DistributedArray       an array that is split over the ranks: halo, reductions, files
    read_block, write_block            this rank's part of an array that is split over the ranks
    matmul                             the product of arrays that are split over the ranks
    fft, ifft, rfft, irfft, transpose  of an array that is split over the ranks, or of a whole one
    FourierPlan                        Fourier transforms of many arrays of one shape
    sort, argsort, unique, searchsorted, bincount, histogram, percentile, quantile, median, cumsum, cumprod
                                       NumPy's functions, of arrays that are split over the ranks
    solve, inv, det, eigh              linear algebra of a small matrix per cell
    compress, owners, send_to_owners, deposit, interpolate
                                       particles: rows to keep and to move, and their exchange with a grid
    validate                           a verdict on the GPUs of this machine and their links
    kernel                             a CUDA kernel of a .cu file, compiled for this rank's GPU
    MeshrunError, UserError, RunError, BadResult
                                       any error; a mistake in what was asked for; a failure; a wrong result
    __version__                        of the installed package, such as "1.2.0"

Each name is loaded when it is first used, so that `import meshrun` costs nothing. Warnings are logged by the
logger "meshrun" of the standard library's logging.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshrun.jobs.linalg.matmul.blocks import matmul as matmul
    from meshrun.jobs.transforms.fourier import fft as fft
    from meshrun.jobs.transforms.fourier import ifft as ifft
    from meshrun.jobs.transforms.fourier import irfft as irfft
    from meshrun.jobs.transforms.fourier import rfft as rfft
    from meshrun.jobs.transforms.fourier_plan import FourierPlan as FourierPlan
    from meshrun.jobs.transforms.transpose import transpose as transpose
    from meshrun.jobs.validate.call import validate as validate
    from meshrun.runner.arrays.distributed_array import DistributedArray as DistributedArray
    from meshrun.runner.arrays.load import load as load
    from meshrun.runner.arrays.load import read_block as read_block
    from meshrun.runner.arrays.particles import compress as compress
    from meshrun.runner.arrays.particles import deposit as deposit
    from meshrun.runner.arrays.particles import interpolate as interpolate
    from meshrun.runner.arrays.particles import owners as owners
    from meshrun.runner.arrays.particles import send_to_owners as send_to_owners
    from meshrun.runner.arrays.store import save as save
    from meshrun.runner.arrays.store import write_block as write_block
    from meshrun.runner.arrays.tools.counting import bincount as bincount
    from meshrun.runner.arrays.tools.counting import histogram as histogram
    from meshrun.runner.arrays.tools.order_statistics import median as median
    from meshrun.runner.arrays.tools.order_statistics import percentile as percentile
    from meshrun.runner.arrays.tools.order_statistics import quantile as quantile
    from meshrun.runner.arrays.tools.scans import cumprod as cumprod
    from meshrun.runner.arrays.tools.scans import cumsum as cumsum
    from meshrun.runner.arrays.tools.searching import searchsorted as searchsorted
    from meshrun.runner.arrays.tools.searching import unique as unique
    from meshrun.runner.arrays.tools.small_matrices import det as det
    from meshrun.runner.arrays.tools.small_matrices import eigh as eigh
    from meshrun.runner.arrays.tools.small_matrices import inv as inv
    from meshrun.runner.arrays.tools.small_matrices import solve as solve
    from meshrun.runner.arrays.tools.sorting import argsort as argsort
    from meshrun.runner.arrays.tools.sorting import sort as sort
    from meshrun.runner.device.kernel_file import kernel as kernel
    from meshrun.runner.errors import BadResult as BadResult
    from meshrun.runner.errors import MeshrunError as MeshrunError
    from meshrun.runner.errors import RunError as RunError
    from meshrun.runner.errors import UserError as UserError
    from meshrun.runner.job.block_context import BlockContext as BlockContext
    from meshrun.runner.job.series import Series as Series
    from meshrun.runner.maps.reduce import Tiles as Tiles
    from meshrun.runner.run.declare import distribute as distribute
    from meshrun.runner.run.declare import job as job
    from meshrun.runner.run.declare import map_blocks as map_blocks
    from meshrun.runner.run.declare import reduce_blocks as reduce_blocks
    from meshrun.runner.run.main_program.checkpoint import checkpoint as checkpoint
    from meshrun.runner.run.main_program.opening import open_world as open_world
    from meshrun.runner.world.world import World as World

    __version__: str

_MODULE_OF = {
    "distribute": "meshrun.runner.run.declare",
    "map_blocks": "meshrun.runner.run.declare",
    "reduce_blocks": "meshrun.runner.run.declare",
    "job": "meshrun.runner.run.declare",
    "open_world": "meshrun.runner.run.main_program.opening",
    "checkpoint": "meshrun.runner.run.main_program.checkpoint",
    "World": "meshrun.runner.world.world",
    "BlockContext": "meshrun.runner.job.block_context",
    "Series": "meshrun.runner.job.series",
    "Tiles": "meshrun.runner.maps.reduce",
    "DistributedArray": "meshrun.runner.arrays.distributed_array",
    "load": "meshrun.runner.arrays.load",
    "save": "meshrun.runner.arrays.store",
    "read_block": "meshrun.runner.arrays.load",
    "write_block": "meshrun.runner.arrays.store",
    "matmul": "meshrun.jobs.linalg.matmul.blocks",
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft"), "meshrun.jobs.transforms.fourier"),
    "FourierPlan": "meshrun.jobs.transforms.fourier_plan",
    "transpose": "meshrun.jobs.transforms.transpose",
    **dict.fromkeys(("argsort", "sort"), "meshrun.runner.arrays.tools.sorting"),
    **dict.fromkeys(("searchsorted", "unique"), "meshrun.runner.arrays.tools.searching"),
    **dict.fromkeys(("bincount", "histogram"), "meshrun.runner.arrays.tools.counting"),
    **dict.fromkeys(("median", "percentile", "quantile"), "meshrun.runner.arrays.tools.order_statistics"),
    **dict.fromkeys(("cumprod", "cumsum"), "meshrun.runner.arrays.tools.scans"),
    **dict.fromkeys(("det", "eigh", "inv", "solve"), "meshrun.runner.arrays.tools.small_matrices"),
    **dict.fromkeys(
        ("compress", "owners", "send_to_owners", "deposit", "interpolate"), "meshrun.runner.arrays.particles"
    ),
    "validate": "meshrun.jobs.validate.call",
    "kernel": "meshrun.runner.device.kernel_file",
    "MeshrunError": "meshrun.runner.errors",
    "UserError": "meshrun.runner.errors",
    "RunError": "meshrun.runner.errors",
    "BadResult": "meshrun.runner.errors",
}
__all__ = list(_MODULE_OF)


if not TYPE_CHECKING:  # with it, type checkers would accept any name

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
    return sorted([*__all__, "__version__"])
