"""Run array work over many GPUs and nodes.

What a job or a script uses; each name is loaded when first asked for, so that importing the
package costs nothing.

    map_blocks, reduce_blocks, job      declare a job (`runner.declare`)
    open_world, World                   the ranks, for programs of their own (`runner.world`)
    BlockContext                        what a block's function may know of its place (`runner.here`)
    Tiles                               an array in pieces that do not depend on the ranks (`runner.reduce`)
    kernel                              a compiled CUDA kernel of a .cu file (`runner.backend.cuda`)
    Box, Gpu, Memory, open_box          all GPUs of this process, for measurements (`runner.backend.box`)
    Pool, open_pools                    ways to allocate memory of a GPU, compared (`runner.backend.pools`)
    free_host_memory                    what this process may still take (`runner.backend.host`)
    geam, gemm                          cuBLAS on raw memory, row-major (`runner.backend.cuda_blas`)
    UserError, RunError, BadResult, MeshrunError   what goes wrong (`runner.errors`)
    run_as_rank, FailureHandler         run a command as a rank, report its failures (`runner.rank_process`)
    MeasurementProgress, Watchdog       abort a stuck run and report where it is stuck (`runner.watchdog`)
    clock_offsets                       every rank's clock (`runner.clock`)
    gpu_links, nics, network_rate       nominal rates of links (`runner.links`)
    read_counters                       error counters and states of GPU and host (`runner.counters`)
    stolen_seconds                      what a hypervisor took of processors (`runner.counters_processors`)
    environment                         the process's variables (`runner.launcher`)
    versions                            of all that figures depend on (`runner.record_builder`)
    table                               columns and rows as lines of text (`runner.report.table`)
    json_text, write_json               a record as JSON, in its envelope (`runner.report.record`)
    write_file, check_writable, is_stream
                                        a small file, whole at every moment (`runner.files`)
    Control, Collectives, Call, Place, Buffer, Datatype, DATATYPES, OPERATIONS, REDUCTIONS, premultiplier
                                        collectives on raw memory (`runner.comm.collectives`)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.backend.box import Box as Box
    from runner.backend.box import Gpu as Gpu
    from runner.backend.box import Memory as Memory
    from runner.backend.cuda import kernel as kernel
    from runner.backend.cuda_blas import geam as geam
    from runner.backend.cuda_blas import gemm as gemm
    from runner.backend.cuda_box import open_box as open_box
    from runner.backend.cuda_pools import open_pools as open_pools
    from runner.backend.host import free_host_memory as free_host_memory
    from runner.backend.pools import Pool as Pool
    from runner.clock import clock_offsets as clock_offsets
    from runner.comm import Control as Control
    from runner.comm.collectives import DATATYPES as DATATYPES
    from runner.comm.collectives import OPERATIONS as OPERATIONS
    from runner.comm.collectives import REDUCTIONS as REDUCTIONS
    from runner.comm.collectives import Buffer as Buffer
    from runner.comm.collectives import Call as Call
    from runner.comm.collectives import Collectives as Collectives
    from runner.comm.collectives import Datatype as Datatype
    from runner.comm.collectives import Place as Place
    from runner.comm.collectives import premultiplier as premultiplier
    from runner.counters import read_counters as read_counters
    from runner.counters_processors import stolen_seconds as stolen_seconds
    from runner.declare import job as job
    from runner.declare import map_blocks as map_blocks
    from runner.declare import reduce_blocks as reduce_blocks
    from runner.errors import BadResult as BadResult
    from runner.errors import MeshrunError as MeshrunError
    from runner.errors import RunError as RunError
    from runner.errors import UserError as UserError
    from runner.errors import tell as tell
    from runner.failure import FailureHandler as FailureHandler
    from runner.files import check_writable as check_writable
    from runner.files import is_stream as is_stream
    from runner.files import write_file as write_file
    from runner.here import BlockContext as BlockContext
    from runner.here import Here as Here
    from runner.launcher import environment as environment
    from runner.links import gpu_links as gpu_links
    from runner.links import network_rate as network_rate
    from runner.links import nics as nics
    from runner.rank_process import run_as_rank as run_as_rank
    from runner.record_builder import versions as versions
    from runner.reduce import Tiles as Tiles
    from runner.report.record import json_text as json_text
    from runner.report.record import write_json as write_json
    from runner.report.table import table as table
    from runner.watchdog import MeasurementProgress as MeasurementProgress
    from runner.watchdog import Watchdog as Watchdog
    from runner.world import World as World
    from runner.world import open_world as open_world

_HOME = {
    "map_blocks": "runner.declare",
    "reduce_blocks": "runner.declare",
    "job": "runner.declare",
    "open_world": "runner.world",
    "World": "runner.world",
    "BlockContext": "runner.here",
    "Here": "runner.here",
    "Tiles": "runner.reduce",
    "versions": "runner.record_builder",
    "table": "runner.report.table",
    "json_text": "runner.report.record",
    "write_json": "runner.report.record",
    "write_file": "runner.files",
    "check_writable": "runner.files",
    "is_stream": "runner.files",
    "kernel": "runner.backend.cuda",
    "Box": "runner.backend.box",
    "Gpu": "runner.backend.box",
    "Memory": "runner.backend.box",
    "open_box": "runner.backend.cuda_box",
    "geam": "runner.backend.cuda_blas",
    "gemm": "runner.backend.cuda_blas",
    "Pool": "runner.backend.pools",
    "open_pools": "runner.backend.cuda_pools",
    "free_host_memory": "runner.backend.host",
    "BadResult": "runner.errors",
    "UserError": "runner.errors",
    "RunError": "runner.errors",
    "MeshrunError": "runner.errors",
    "tell": "runner.errors",
    "run_as_rank": "runner.rank_process",
    "FailureHandler": "runner.failure",
    "MeasurementProgress": "runner.watchdog",
    "Watchdog": "runner.watchdog",
    "environment": "runner.launcher",
    "clock_offsets": "runner.clock",
    "gpu_links": "runner.links",
    "nics": "runner.links",
    "network_rate": "runner.links",
    "read_counters": "runner.counters",
    "stolen_seconds": "runner.counters_processors",
    "Control": "runner.comm",
    "Collectives": "runner.comm.collectives",
    "Call": "runner.comm.collectives",
    "Place": "runner.comm.collectives",
    "Buffer": "runner.comm.collectives",
    "Datatype": "runner.comm.collectives",
    "DATATYPES": "runner.comm.collectives",
    "OPERATIONS": "runner.comm.collectives",
    "REDUCTIONS": "runner.comm.collectives",
    "premultiplier": "runner.comm.collectives",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
