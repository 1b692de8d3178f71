"""Open the world of a user's own main program: on its ranks, or on ranks that it starts."""

from __future__ import annotations

from dataclasses import fields
from typing import cast

from meshrun.runner.comm.api import Control
from meshrun.runner.options.choices import DeviceChoice
from meshrun.runner.run.main_program.program_world import ProgramWorld
from meshrun.runner.run.main_program.rank_processes import ProcessWorld
from meshrun.runner.run.python_call import check_ranks
from meshrun.runner.spelling import python_caller
from meshrun.runner.system.launcher import is_resumed
from meshrun.runner.world import world as opening


@python_caller()
def open_world(
    device: DeviceChoice = "auto",
    *,
    oversubscribe: bool = False,
    expected_ranks: int | None = None,
    control: Control | None = None,
    record: str | None = None,
    later: bool = False,
    resume: bool | None = None,
    ranks: int | None = None,
) -> ProgramWorld:
    """Find the ranks and bind this rank's device. Collective.

    The world is closed by `close`, or at the end of a `with` block. If only one of several ranks raises an
    error in the block, meshrun prints its traceback and ends all ranks.

    Parameters
    ----------
    device : {"auto", "cuda", "cpu"}
        "auto": a GPU for each rank, or the CPU for all if no rank sees a GPU.
    oversubscribe : bool
        Whether ranks may share a GPU; arrays between ranks then pass through host memory.
    expected_ranks : int, optional
        Number of ranks that the user requested. None: any.
    control : Control, optional
        Communicator to use instead of MPI's.
    record : str, optional
        What the run does, to record the operations of this rank, which must be a process. None: no record.
    later : bool
        Whether to load and open NCCL, which takes most of a second, only when arrays first cross between
        GPUs. All ranks must take part in that exchange, and it fails if NCCL is not installed.
    resume : bool, optional
        Whether `meshrun.checkpoint` restores what an earlier run has saved. None: if the program's command
        has the flag `resume`, or if Slurm has requeued its job.
    ranks : int, optional
        How many ranks to start on this machine if no MPI launcher has started this program, such as a
        notebook; each is a process with its own device. None: the launcher's, or this process alone.

    Returns
    -------
    World
        The ranks, with their communicators.

    Raises
    ------
    UserError
        If the launcher's variables contradict MPI, if there is no device for a rank, or if two ranks would
        share a GPU; on every rank if they can communicate.

    Examples
    --------
    >>> with meshrun.open_world("cpu") as world:
    ...     u = world.ones((64, 64))
    ...     total = float(np.sum(u))
    """
    resumed = is_resumed() if resume is None else resume
    if (started := check_ranks(ranks)) is not None:
        return cast(ProgramWorld, ProcessWorld(started, device, oversubscribe, resumed))
    world = opening.open_world(
        device,
        oversubscribe=oversubscribe,
        expected_ranks=expected_ranks,
        control=control,
        record=record,
        later=later,
    )
    opened = ProgramWorld(**{one.name: getattr(world, one.name) for one in fields(world) if one.init})
    opened.checkpoints.resume = world.control.broadcast(resumed)
    return opened
