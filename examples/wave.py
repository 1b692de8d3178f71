r"""Waves on a surface whose opposite edges meet: each step needs the last two states, so the job has two
inputs and two outputs.

    python3 examples/make_inputs.py
    meshrun run examples/wave.py inputs/now.npy inputs/before.npy after.npy old.npy \
        --steps 240 --frames wave.webp --every 12 --frame-range=-0.3:0.3 --frame-colors coolwarm
"""

import meshrun


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=("after", "old"), feeds=("now", "before"))
def wave(now, before, *, speed: float = 0.5):
    """Take one step of the wave equation.

    speed: wave speed * time step / cell size; stable up to 0.7.
    """
    centre = now[1:-1, 1:-1]
    sides = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:]
    after = 2 * centre - before[1:-1, 1:-1] + speed**2 * (sides - 4 * centre)
    return after, centre
