"""Flows around a cylinder whose forces are known, and a plain driver that takes their time steps on one
device.

The driver shares the step and the links with the job airflow, and nothing else: no runner, no ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrun.jobs.airflow import units
from meshrun.jobs.airflow.cells import Cell
from meshrun.jobs.airflow.coefficients import History, coefficients
from meshrun.jobs.airflow.lattice import D2Q9
from meshrun.jobs.airflow.links import addresses, find_links, force, momentum, set_slots
from meshrun.jobs.airflow.shapes.bodies import Body, Round
from meshrun.jobs.airflow.step import step_job
from meshrun.runner.compiler.compiled import compile_for
from meshrun.runner.compiler.trace.graph import Operand
from meshrun.runner.compiler.trace.trace import trace
from meshrun.runner.device.api import Device
from meshrun.runner.errors import RunError
from meshrun.runner.region import Region

Array = Any
WIDTHS = ((1, 1), (1, 1))


@dataclass(frozen=True)
class Flow:
    """body: in its domain. cells: uint8. profile: of the inlet, (rows, 1), by which `speed` is multiplied.
    speed: mean speed of the inlet, cells a step. viscosity: kinematic. kick: speed across the flow, relative
    to `speed`, of an eddy that is behind the body at the start."""

    body: Body
    cells: np.ndarray[Any, Any]
    profile: np.ndarray[Any, Any]
    speed: float
    viscosity: float
    kick: float = 0.0

    @property
    def length_steps(self) -> float:
        """Steps in which the flow goes as far as the body is long."""
        return self.body.length / self.speed


def channel(diameter: int, reynolds: float, speed: float, length: float = 22.0) -> Flow:
    """M. Schaefer, S. Turek, Benchmark computations of laminar flow around a cylinder (1996): 2D-1 and 2D-2.

    Their channel is 4.1 diameters high and 22 long. The cylinder's centre is 2 diameters from the inlet and
    from the floor. length: of this channel, in diameters.
    """
    # Between the walls, which are half way between the first and second row of cells.
    height = round(4.1 * diameter)
    shape = (height + 2, round(length * diameter))
    centre = (height + 0.5 - 2 * diameter, 0.5 + 2 * diameter)
    body = Round("the cylinder", shape, float(diameter), float(diameter), centre, diameter / 2)
    cells = np.zeros(shape, np.uint8)
    cells[:, 0], cells[:, -1] = Cell.MOVING, Cell.OUTFLOW
    cells[[0, -1]] = Cell.SOLID
    above = ((np.arange(shape[0]) - 0.5) / height)[:, None]
    profile = np.maximum(6 * above * (1 - above), 0)
    return Flow(body, cells, profile, speed, speed * diameter / reynolds, 0.3 if reynolds > 50 else 0.0)


def free(diameter: int, reynolds: float, speed: float, size: tuple[float, float] = (32.0, 40.0)) -> Flow:
    """A cylinder between far walls without friction. size: height and width of the domain, in diameters."""
    shape = (round(size[0] * diameter) + 2, round(size[1] * diameter))
    centre = ((shape[0] - 1) / 2, 0.3 * shape[1])
    body = Round("the cylinder", shape, float(diameter), float(diameter), centre, diameter / 2)
    cells = np.zeros(shape, np.uint8)
    cells[0], cells[-1] = Cell.SLIP, Cell.SLIP_END
    cells[:, 0], cells[:, -1] = Cell.MOVING, Cell.OUTFLOW
    return Flow(body, cells, np.ones((shape[0], 1)), speed, speed * diameter / reynolds, 0.3)


def start(flow: Flow) -> list[np.ndarray[Any, Any]]:
    """Padded blocks of all populations: the inlet's profile everywhere but in the body, in equilibrium."""
    rows, columns = np.ogrid[tuple(map(slice, flow.cells.shape))]
    solid = flow.body.solid(Region((0, 0), flow.cells.shape))
    along = np.broadcast_to(flow.speed * flow.profile, flow.cells.shape)
    row, column = getattr(flow.body, "centre", (0.0, 0.0))
    far = ((rows - row) ** 2 + (columns - column - 2 * flow.body.length) ** 2) / flow.body.length**2
    across = flow.kick * flow.speed * np.exp(-far)
    open_cells = ~solid & (flow.cells == Cell.FLUID)
    found = []
    for (e_row, e_column), weight in zip(D2Q9.velocities, D2Q9.weights, strict=True):
        carried = e_row * across + e_column * along
        moving = weight * (3 * carried + 4.5 * carried**2 - 1.5 * (along**2 + across**2))
        found.append(np.pad(np.where(open_cells, moving, 0), 1).astype(np.float32))
    return found


def rates(flow: Flow) -> dict[str, float]:
    """Parameters of the step."""
    known = units.Flow(flow.speed * flow.body.length / flow.viscosity, flow.body.length, flow.speed)
    return {
        "omega": known.omega,
        "omega_minus": known.omega_minus,
        "velocity_x": flow.speed,
        "outflow": known.outflow,
        "anchor": 0.002,
    }


def simulate(flow: Flow, steps: int, every: int, device: str = "host") -> History:
    """Take time steps, and measure the force after every so many of them. device: numpy, host (compiled) or
    cuda.

    No halo is filled: the cells at the frame are of kinds that need none. RunError if the flow is none any
    more.
    """
    body_cells = flow.body.solid(Region((0, 0), flow.cells.shape))
    fluid = np.pad((flow.cells == Cell.FLUID) & ~body_cells, 1)
    cells = np.pad(np.where(body_cells, Cell.SOLID, flow.cells).astype(np.uint8), 1)
    job = step_job(D2Q9, {int(kind) for kind in np.unique(cells)}, profile=True)
    parameters = job.complete(rates(flow))
    links = find_links(flow.body, Region((0, 0), flow.cells.shape), D2Q9, fluid=fluid)
    wind = np.pad(np.broadcast_to(flow.profile, flow.cells.shape), 1).astype(np.float32)
    state = start(flow)
    xp: Any = np
    if device == "cuda":
        import cupy as xp
    blocks = [[xp.asarray(one) for one in state], [xp.zeros(state[0].shape, np.float32) for _ in state]]
    steady = [xp.asarray(cells), xp.asarray(wind)]
    links = links.on(xp)
    tables = [addresses(xp, one) if device == "cuda" else None for one in blocks]

    def function(inputs: Sequence[Array], outs: Sequence[Array], first: Sequence[int]) -> None:
        for out, one in zip(outs, job.function(*inputs, xp=xp, **parameters), strict=True):
            out[...] = one

    kernel: Callable[[Sequence[Array], Sequence[Array], Sequence[int]], None] = function
    if device != "numpy":
        inputs = [
            Operand(name, one.dtype) for name, one in zip(job.arrays, [*state, cells, wind], strict=True)
        ]
        program = trace(job.function, inputs, WIDTHS, parameters, job.services, job.output_names)
        kernel, _ = compile_for(Device("cuda" if device == "cuda" else "cpu", device), program, WIDTHS)
    own = (slice(1, -1), slice(1, -1))

    def step(turn: int) -> None:
        set_slots(blocks[turn], links, xp, tables[turn])
        kernel([*blocks[turn], *steady], [one[own] for one in blocks[1 - turn]], (0, 0))

    def two_steps() -> None:
        step(0)
        step(1)

    run_pairs: Callable[[int], None] = _one_by_one(two_steps)
    if device == "cuda":
        run_pairs = _as_graph(two_steps)
    if every % 2:
        raise ValueError("`every` is even: the populations are in the first blocks then")
    forces = []
    for done in range(every, steps + 1, every):
        run_pairs(every // 2)
        set_slots(blocks[0], links, xp, tables[0])
        total = momentum(blocks[0], links, D2Q9, xp, table=tables[0])
        forces.append(force(total.get() if device == "cuda" else total))
        if not np.isfinite(forces[-1]).all():
            raise RunError(f"the flow broke down before step {done}", got="a force that is not finite")
    return coefficients(range(every, steps + 1, every), np.array(forces), flow.body, flow.speed)


def _one_by_one(work: Callable[[], None]) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            work()

    return run


def _as_graph(work: Callable[[], None]) -> Callable[[int], None]:
    """The same as a CUDA graph; the first time as it is, which compiles kernels."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    graphs: dict[int, Any] = {}

    def run(count: int) -> None:
        with stream:
            if count in graphs:
                graphs[count].launch(stream)
            else:
                _one_by_one(work)(count)
                stream.synchronize()
                stream.begin_capture()
                _one_by_one(work)(count)
                graphs[count] = stream.end_capture()
            stream.synchronize()

    return run
