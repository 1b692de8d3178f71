r"""Heat spreads in a plate with insulated edges: one field, one neighbour on each side.

    python3 examples/make_inputs.py
    meshrun run examples/heat.py inputs/heat.npy cooled.npy \
        --steps 800 --frames heat.webp --every 40 --frame-range 0:0.7 --frame-colors inferno
"""

import meshrun


@meshrun.map_blocks(halo=1, boundary="reflect")
def heat(field, *, rate: float = 0.2):
    """Take one step of the heat equation on a plate; nothing passes its edges.

    rate: diffusivity * time step / cell size squared; stable up to 0.25.
    """
    centre = field[1:-1, 1:-1]
    sides = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
    return centre + rate * (sides - 4 * centre)
