r"""Heat spreads in a cube of several materials. No output feeds the second input, `conductivity`, so it stays
as it is. A hot rod lies in a tube of insulation that is open on two sides.

    python3 examples/make_inputs.py
    meshrun run examples/diffusion3d.py inputs/cube.npy inputs/conductivity.npy spread.npy \
        --steps 1000 --frames cube.webp --every 40 --frame-range 0:0.4 --frame-colors inferno
"""

import meshrun


@meshrun.map_blocks(halo=1, boundary="reflect", feeds=("field",))
def diffusion3d(field, conductivity, *, xp):
    """Take one step; nothing passes the walls.

    What flows between two cells is their difference times the mean of their conductivities, which are
    diffusivity * time step / cell size squared; stable up to 1/6.
    """
    after = field[1:-1, 1:-1, 1:-1].copy()
    for axis in range(3):
        rows = tuple(slice(None) if other == axis else slice(1, -1) for other in range(3))
        heat, conducts = (xp.moveaxis(array[rows], axis, 0) for array in (field, conductivity))
        flow = (conducts[1:] + conducts[:-1]) / 2 * (heat[1:] - heat[:-1])
        after += xp.moveaxis(flow[1:] - flow[:-1], 0, axis)
    return after
