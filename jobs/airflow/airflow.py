"""The job `airflow`: the air in a wind tunnel, from a shape to a film and the forces on the body."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import meshrun
from meshrun.jobs.airflow import coefficients
from meshrun.jobs.airflow.lattice import LATTICES, Lattice
from meshrun.jobs.airflow.observers.field_file import check_fields
from meshrun.jobs.airflow.observers.film import FlowFrames
from meshrun.jobs.airflow.observers.sampling import ForceSamples
from meshrun.jobs.airflow.observers.snapshots import FlowFields, Snapshots, count_snapshots
from meshrun.jobs.airflow.observers.steady import TOLERANCES, UntilSteady
from meshrun.jobs.airflow.shapes import shape as shapes
from meshrun.jobs.airflow.shapes.bodies import Body, CellBody
from meshrun.jobs.airflow.shapes.parts import find_parts
from meshrun.jobs.airflow.step import Collision, Damping, step_job
from meshrun.jobs.airflow.tunnel import Cavity, Sides, Tunnel
from meshrun.jobs.airflow.units import Flow
from meshrun.runner.errors import UserError
from meshrun.runner.options.choices import COLORS
from meshrun.runner.options.step_options import NamedRule, StepOptions
from meshrun.runner.region import Shape
from meshrun.runner.report.record import Record
from meshrun.runner.run.services.simulation import Simulate
from meshrun.runner.spelling import joined, option, run_command
from meshrun.runner.steps.observers.additions import Additions
from meshrun.runner.storage.formats.registry import check_place
from meshrun.runner.world.world import World

LATTICE = {2: "D2Q9", 3: "D3Q19"}  # by number of axes
CROSSINGS = 4  # of the domain by the flow, where `steps` is not given
LONGEST = 10  # times as many, for a flow that is to become steady
FRAMES = 100  # where `every` is not given
# Cells that a run without a film computes between two checks, and steps, at least: a check of a small field
# takes as long as many steps.
CHECKED_CELLS, CHECKED_STEPS = 1 << 30, (50, 2000)
# Of forces, while the flow passes the length of a body, and at least while it goes as far as the body is
# high: a thin one sheds eddies of that size, each in about five times as long.
SAMPLES, FEWEST_SAMPLES = 16, 4
MOST_ISOLINES = 100
ANCHOR = 0.02  # rate at which the density at the outflow relaxes to 1


@meshrun.job
def airflow(
    world: World,
    argument: str,
    simulate: Simulate,
    *,
    reynolds: float = 150.0,
    size: str | None = None,
    length: float | None = None,
    place: str | None = None,
    up: Literal["y", "z"] = "z",
    speed: float = 0.1,
    sides: Literal["walls", "slip", "periodic"] = "slip",
    inlet: Literal["uniform", "parabolic"] = "uniform",
    surface: Literal["auto", "interpolated", "cells"] = "auto",
    lattice: Literal["auto", "D2Q9", "D3Q19", "D3Q27"] = "auto",
    collision: Literal["trt", "bgk", "les"] = "trt",
    storage: Literal["float32", "float16"] = "float32",
    draw: Literal["speed", "vorticity", "pressure"] = "speed",
    isolines: int = 0,
    isolines_of: Literal["drawn", "speed", "vorticity", "pressure"] = "drawn",
    slice: str | None = None,
    forces: Path | None = None,
    forces_every: int | None = None,
    fields: Path | None = None,
    fields_every: int | None = None,
) -> Record:
    """Blow air past a shape and film it: lattice-Boltzmann method, two or three axes.

    INPUT is the shape: a picture (dark is solid), cylinder, sphere, airfoil:2412@8 (NACA digits and angle of
    attack), none, cavity (a closed box whose top moves along x), an .stl file, an array or a folder of
    pictures (a plane each). OUTPUT is the film: .gif, .webp, .png, .mp4 (with ffmpeg) or a folder of PNGs;
    leave it out, or write -, for no film. The air flows from left to right.

    reynolds: Reynolds number: mean velocity of the inlet * length / viscosity.
    size: cells of the domain, WIDTHxHEIGHT or WIDTHxHEIGHTxDEPTH. Default: the picture's.
    length: characteristic length of the shape, in cells. Default: by the size of the domain.
    place: X,Y[,Z] of the middle of the shape, in fractions of the domain from the left, top and front.
    up: axis of an .stl file that points up.
    speed: mean velocity of the inlet, in cells a step: larger is faster and less accurate, at most 0.115.
    sides: what is above and below: walls, walls without friction, or a periodic domain.
    inlet: profile of the inlet's velocity.
    surface: whether the exact surface is used (of a named shape, .stl file or smooth picture), or cells only.
    lattice: discrete velocities. auto: D2Q9 or D3Q19.
    collision: two relaxation times, one, or a large-eddy model (stable at large Reynolds numbers).
    storage: type in memory: float16 halves the bytes of a cell and keeps three digits.
    draw: what the film shows.
    isolines: number of lines of equal value over the picture.
    isolines_of: quantity whose lines they are: the drawn one, or another.
    slice: plane of three axes that the film shows: x=F, y=F or z=F, a fraction from the left, top or front.
    forces: file for drag and lift over time: .csv, or a plot .png, .svg or .html.
    forces_every: steps between two samples of the forces.
    fields: file for velocity, pressure and solid cells: .vtkhdf (for ParaView), .h5 or .zarr.
    fields_every: steps between two snapshots of the fields. Default: only the last step is written.
    """
    world.collective_call(lambda: _check_files(argument, simulate.film, forces, fields))
    smaller = f"a smaller {option('size')}"  # hint for fields that do not fit the memory
    if size is not None:  # looking at the cells of a domain that no memory holds takes hours
        shape = world.collective_call(lambda: shapes.parse_size(size))
        populations = world.collective_call(lambda: _lattice(lattice, shape)).size
        simulate.check_memory(math.prod(shape) * populations * np.dtype(storage).itemsize, smaller)
    body = world.collective_call(lambda: _body(argument, shapes.Placement(size, place, length, up), sides))
    chosen = world.collective_call(lambda: _lattice(lattice, body.shape))
    flow = world.collective_call(lambda: _flow(reynolds, body, speed, collision))
    if argument == "cavity":
        world.collective_call(lambda: _check_cavity(sides, inlet))
    kind = Cavity if argument == "cavity" else Tunnel
    tunnel = kind(body, chosen, sides, inlet, speed, np.dtype(storage))
    damping: Damping = "factors" if world.backend.device.kind == "cuda" else "results"
    step = step_job(chosen, tunnel.kinds, collision, storage, inlet == "parabolic", damping)
    if not simulate.filmed:
        drawn = {"draw": draw != "speed", "isolines": isolines != 0, "slice": slice is not None}
        world.collective_call(lambda: _check_no_film(drawn, simulate.options, argument))
    options = _options(simulate.options, tunnel, filmed=simulate.filmed)
    assert options.steps is not None
    samples = world.collective_call(lambda: _samples(tunnel, surface, forces_every, options))
    if forces is not None:
        world.collective_call(lambda: _check_forces(forces, samples))
    if samples is not None and body.box.stop[-1] > tunnel.undamped:
        world.warn(
            f"{body.name} reaches into the last {body.shape[-1] - tunnel.undamped} columns, which damp "
            "eddies or lie beside such cells: drag and lift are not those of the whole body"
        )
    plane = world.collective_call(lambda: _plane(slice, body))
    world.collective_call(lambda: _check_isolines(isolines, isolines_of))
    lined = draw if isolines_of == "drawn" else isolines_of
    content = FlowFrames(
        chosen, np.dtype(storage), draw, tunnel.greatest, body.length, isolines, lined, plane
    )
    snapshots = None
    if fields is not None or fields_every is not None:
        snapshots = world.collective_call(
            lambda: _snapshots(fields, fields_every, FlowFields(chosen), body, options)
        )
    rule = _until_steady(options, tunnel)
    observers = [one for one in (samples, snapshots) if one is not None]
    additions = Additions(
        content,
        observers,
        samples.open if samples is not None and samples.interpolated else None,
        [] if fields is None else [fields],
        observers,
        rule,
        smaller,
    )
    description = {
        "shape": _identity(argument), "size": list(body.shape), "length": length, "place": place, "up": up,
        "sides": sides, "inlet": inlet, "speed": speed, "surface": surface,
    }  # fmt: skip
    parameters = {
        "omega": flow.omega,
        "omega_minus": flow.omega_minus,
        "velocity_x": tunnel.greatest,
        "outflow": flow.outflow,
        "anchor": ANCHOR,
        "adapt": tunnel.adapt,
    }
    known = {one.name for one in step.parameters}
    parameters = {name: value for name, value in parameters.items() if name in known}
    done = simulate(step, parameters, tunnel.sources(description), options, additions)
    result: Record = {
        "cells": math.prod(body.shape),
        "reynolds": reynolds,
        "length": body.length,
        **_reference(body),
        "speed": speed,
        "viscosity": flow.viscosity,
        "omega": flow.omega,
        "steps": done["steps"],
    }
    steady = rule is not None and rule.reached
    if rule is not None:
        result["steady"] = steady
    if snapshots is not None:
        result |= {"snapshots": len(snapshots.steps), "first_snapshot": snapshots.steps[0]}
    if samples is not None and samples.steps:
        result |= _results(world, samples, forces, steady)
    return result


def _check_files(shape: str, film: Path | None, forces: Path | None, fields: Path | None) -> None:
    """Refuse forces and fields that would replace the shape or the film. film: None in a plan."""
    others = {"OUTPUT": film, "SHAPE": Path(shape)}
    for written, path in ((option("forces"), forces), (option("fields"), fields)):
        for name, other in others.items():
            if path is not None and other is not None and path.resolve() == other.resolve():
                raise UserError(f"{written} and {name} name the same file", got=path, expected="two files")


def _body(word: str, placement: shapes.Placement, sides: Sides) -> Body:
    body = shapes.read(word, placement)
    return shapes.check(body, ("top", "bottom", "front", "back") if sides != "periodic" else ())


def _lattice(name: str, shape: Shape) -> Lattice:
    axes = len(shape)
    chosen = LATTICES[LATTICE[axes] if name == "auto" else name]
    if chosen.axes != axes:
        raise UserError(
            f"{name} is a lattice of {chosen.axes} axes",
            got=f"a domain of {shapes.size_text(shape)} cells",
            expected=LATTICE[axes],
            hint=option("size", metavar="WIDTHxHEIGHTxDEPTH")
            if axes == 2
            else f"leave {option('lattice')} out",
        )
    return chosen


def _flow(reynolds: float, body: Body, speed: float, collision: Collision) -> Flow:
    flow = Flow(reynolds, body.length, speed)
    flow.check(collision)
    return flow


def _check_cavity(sides: str, inlet: str) -> None:
    """Refuse options of a tunnel."""
    for name, value, usual in (("sides", sides, "slip"), ("inlet", inlet, "uniform")):
        if value != usual:
            raise UserError(
                f"{option(name)} does not apply: a cavity is closed",
                got=value,
                hint=f"leave {option(name)} out",
            )


def _check_no_film(given: dict[str, bool], options: StepOptions, shape: str) -> None:
    """Refuse options of a film where there is none. given: whether such an option of the job is."""
    given = given | {
        "every": options.every is not None,
        "frame_range": options.frame_range is not None,
        "frame_colors": options.frame_colors != COLORS[0],
    }
    name = next((name for name, is_given in given.items() if is_given), None)
    if name is not None:
        raise UserError(
            f"{option(name)} does not apply: there is no film",
            expected="FILM after SHAPE",
            hint=run_command(f"airflow {shape} film.webp {option(name)} ..."),
        )


def _options(given: StepOptions, tunnel: Tunnel, *, filmed: bool = True) -> StepOptions:
    """Return the options of steps with those that are not given."""
    expected = given.steps or round(CROSSINGS * tunnel.shape[-1] / tunnel.speed)
    steps = given.steps or expected * (LONGEST if isinstance(given.until, NamedRule) else 1)
    every = given.every or max(expected // FRAMES, 1)
    checked = every
    if not filmed and given.checkpoint is None:
        least, most = CHECKED_STEPS
        checked = max(every, min(max(CHECKED_CELLS // math.prod(tunnel.shape), least), most))
    return replace(
        given, steps=steps, every=every if filmed else None, check_finite=given.check_finite or checked
    )


def _until_steady(options: StepOptions, tunnel: Tunnel) -> UntilSteady | None:
    """Return what stops a run whose flow is steady; None if it is not asked for."""
    if not isinstance(options.until, NamedRule):
        return None
    passing = max(round(tunnel.body.length / tunnel.speed), 1)  # steps in which the flow passes the body
    return UntilSteady(tunnel.lattice, passing, options.until.tolerance or TOLERANCES[tunnel.storage])


def _samples(tunnel: Tunnel, surface: str, every: int | None, options: StepOptions) -> ForceSamples | None:
    """Return what samples the forces; None if there is no body."""
    body = tunnel.body
    if every is not None and every < 1:
        raise UserError(f"{option('forces_every')} is no number of steps", got=every, expected="1 or more")
    exact = type(body) not in (Body, CellBody)
    if surface == "interpolated" and not exact:
        raise UserError(
            f"{option('surface', 'interpolated')} needs an exact surface",
            got=body.name,
            expected="cylinder, sphere, an airfoil, an .stl file or a picture with smooth edges",
        )
    if type(body) is Body:
        if every is not None:
            raise UserError(f"{option('forces_every')} does not apply: there is no body", got=every)
        return None
    interpolated = surface == "interpolated" or (surface == "auto" and exact)
    passing = min(body.length / SAMPLES, body.box.shape[-2] / FEWEST_SAMPLES)
    chosen = every or max(round(passing / tunnel.speed), 1)
    return ForceSamples(tunnel, chosen, options.steps or 0, interpolated, find_parts(body))


def _check_forces(path: Path, samples: ForceSamples | None) -> None:
    if samples is None:
        raise UserError(f"{option('forces')}: there is no body", got="none", expected="a shape")
    if samples.every >= samples.last:
        raise UserError(
            f"{option('forces')}: no sample before the last step, {samples.last:,}",
            got=option("forces_every", samples.every),
            expected=f"at most {samples.last - 1}" if samples.last > 1 else "more steps",
        )
    suffixes = (".csv", ".png", ".svg", ".html")
    if path.suffix.lower() not in suffixes:
        raise UserError(f"unknown format of forces: {path}", got=path.suffix, expected=", ".join(suffixes))
    check_place(path, "forces file")


def _check_isolines(number: int, quantity: str) -> None:
    """Raise UserError for an impossible number of lines, and for a quantity that no line would show."""
    if not 0 <= number <= MOST_ISOLINES:
        raise UserError(
            f"{option('isolines')} is no number of lines", got=number, expected=f"0 to {MOST_ISOLINES}"
        )
    if not number and quantity != "drawn":
        raise UserError(
            f"{option('isolines_of')} does not apply: no lines are drawn",
            got=option("isolines_of", quantity),
            expected=f"{option('isolines', metavar='N')} too",
            hint=joined(option("isolines", 12), option("isolines_of", quantity)),
        )


def _plane(text: str | None, body: Body) -> tuple[int, int] | None:
    """Return the axis and the index of a film's plane; None if none is given."""
    if text is None:
        return None
    axis, equals, place = text.partition("=")
    try:
        fraction = float(place)
    except ValueError:
        fraction = math.nan
    if axis not in ("z", "y", "x") or not equals or not 0 <= fraction <= 1:
        raise UserError(
            f"{option('slice')} is no plane", got=repr(text), expected="x=F, y=F or z=F, with F from 0 to 1"
        )
    if len(body.shape) != 3:
        raise UserError(
            f"{option('slice')} does not apply: the flow has two axes",
            got=text,
            hint=option("size", metavar="WxHxDEPTH"),
        )
    across = "zyx".index(axis)
    length = body.shape[across]
    return across, min(int(fraction * length), length - 1)


def _snapshots(
    path: Path | None,
    every: int | None,
    content: FlowFields,
    body: Body,
    options: StepOptions,
) -> Snapshots:
    """Return what writes the fields, whose file is checked."""
    if path is None:
        raise UserError(
            f"{option('fields_every')} does not apply without a file",
            got=every,
            hint=option("fields", metavar="FILE.vtkhdf"),
        )
    if every is not None and every < 1:
        raise UserError(f"{option('fields_every')} is no number of steps", got=every, expected="1 or more")
    steps = options.steps or 0
    check_fields(path, body.shape, content.fields, count_snapshots(0, every, steps))
    return Snapshots(content, path, every, steps)


def _identity(word: str) -> dict[str, Any]:
    """Return the shape's word, with the state of its file if it is one."""
    path = Path(word)
    state = path.stat() if path.exists() else None
    return {"word": word} | ({"bytes": state.st_size, "changed_ns": state.st_mtime_ns} if state else {})


def _reference(body: Body) -> Record:
    """Return what force coefficients refer to, under its name; nothing without a body."""
    if type(body) is Body:
        return {}
    return {"reference_area" if len(body.shape) == 3 else "reference_length": body.reference}


def _results(world: World, samples: ForceSamples, file: Path | None, steady: bool) -> Record:
    """Return what the run reports of the forces and the pressure, and write the forces. Collective."""
    result, sound = world.on_root(lambda: _measured(samples, file, steady))
    if sound is not None:
        world.warn(
            f"the lift contains sound that stands between the sides, at a frequency of {sound:.4g}: "
            f"{option('sides', 'slip')} absorbs it"
        )
    if samples.pressure is None:
        return dict(result)
    greatest, least = samples.pressure.coefficients(samples.tunnel.speed)
    return {
        **result,
        "free_stream_pressure": samples.pressure.free_stream,
        "greatest_pressure_coefficient": greatest,
        "least_pressure_coefficient": least,
    }


def _measured(samples: ForceSamples, file: Path | None, steady: bool) -> tuple[Record, float | None]:
    """Return the forces of the run as coefficients, and write them; and the frequency of sound in the lift.

    On rank 0. steady: those of the last sample are meant.
    """
    history, tunnel = _history(samples), samples.tunnel
    if file is not None and file.suffix.lower() == ".csv":
        coefficients.write_csv(history, file)
    elif file is not None:
        coefficients.plot(history, file, f"{tunnel.body.name}, {tunnel.sides}")
    if steady:
        last = {
            name: float(values[-1])
            for name, values in history.columns.items()
            if name.startswith(("drag", "lift"))
        }
        return {**last, "strouhal": None, "strouhal_reason": "the flow is steady"}, None
    return coefficients.averages(history, tunnel.sounds)


def _history(samples: ForceSamples) -> coefficients.History:
    """Return the coefficients over time, of the whole and of each separate body."""
    body, speed = samples.tunnel.body, samples.tunnel.speed
    of_parts = [
        coefficients.coefficients(
            samples.steps, samples.forces_on(number), replace(body, reference=float(reference)), speed
        )
        for number, reference in enumerate(samples.parts.references if samples.parts else ())
    ]
    whole = coefficients.coefficients(samples.steps, samples.forces, body, speed)
    return replace(whole, parts=of_parts)
