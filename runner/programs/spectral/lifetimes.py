"""When the arrays between the parts of a function with transforms are needed, and what loops do with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from meshrun.runner.compiler.whole.spaces.parts import (
    LoopStep,
    ProductStep,
    SpacePart,
    SpectralProgram,
    Step,
)


def lifetimes_of(program: SpectralProgram, changing_places: Mapping[int, int]) -> dict[int, range]:
    """Return the steps from the first to the last one that needs each shared array or value, by its number.

    changing_places: as of `exchanged_states`. Arrays that are not needed at the same time can share memory.
    """
    uses: dict[int, list[int]] = {}
    for number, step in enumerate(program.steps):
        for shared in (*written_by([step]), *read_by([step])):
            uses.setdefault(shared, []).append(number)

    # Of two arrays that change places, each block is one or the other.
    for one, other in changing_places.items():
        uses[one] = uses[other] = sorted({*uses[one], *uses[other]})
    ends = {shared: (min(numbers), max(numbers)) for shared, numbers in uses.items()}

    # What iterations pass on, and what they read from outside of the loop, is needed throughout the loop.
    for number, loop in enumerate(program.steps):
        if isinstance(loop, LoopStep):
            last = number + loop.steps
            for shared, (first, end) in ends.items():
                is_inside = number < first and end <= last
                if first <= last and end >= number and not is_inside:
                    ends[shared] = min(first, number), max(end, last)
    return {shared: range(first, end + 1) for shared, (first, end) in ends.items()}


def exchanged_states(program: SpectralProgram) -> dict[int, int]:
    """Return the shared arrays that change places after an iteration, each with the other one.

    What an iteration finds is then what the one before has left, and that writes all its cells anew. Nothing
    else reads what an iteration leaves.
    """
    found: dict[int, int] = {}
    for number, loop in enumerate(program.steps):
        if not isinstance(loop, LoopStep):
            continue
        body = program.steps[number + 1 : number + 1 + loop.steps]
        outside = [*program.steps[:number], *program.steps[number + 1 + loop.steps :]]
        read, written = Counter(read_by(outside)), {*written_by(body)} - {*written_by(outside)}
        passed_on = Counter(one.final for one in loop.state) + Counter(one.initial for one in loop.state)
        states = {one.found for one in loop.state}
        for one in loop.state:
            last, shared = one.final, program.shared
            if last is None or not shared[one.found].shape or last not in written or read[last]:
                continue
            kinds = {(shared[n].shape, shared[n].dtype) for n in (last, one.found)}
            if (
                len(kinds) == 1
                and passed_on[last] == 1
                and last not in states
                and not {last, one.found} & found.keys()
            ):
                found |= {last: one.found, one.found: last}
    return found


def read_by(steps: Iterable[Step]) -> Iterator[int]:
    """Yield the numbers of the shared arrays and values that steps read, as often as they do."""
    for step in steps:
        if isinstance(step, SpacePart):
            yield from (place.number for place in step.reads if not place.of_function)
        elif isinstance(step, LoopStep):
            yield from (
                one for state in step.state for one in (state.initial, state.final) if one is not None
            )
        elif isinstance(step, ProductStep):
            yield from step.sources
        else:
            yield step.source


def written_by(steps: Iterable[Step]) -> Iterator[int]:
    """Yield the numbers of the shared arrays and values that steps write."""
    for step in steps:
        if isinstance(step, SpacePart):
            yield from (place.number for place in step.writes if not place.of_function)
        elif isinstance(step, LoopStep):
            yield from (one.found for one in step.state)
        else:
            yield step.target
