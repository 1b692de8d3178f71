"""A picture of half the width and height: each cell is a weighted mean of 2x2 cells
and their neighbours.

    meshrun run examples/downsample.py large.png small.png
"""

import meshrun

WEIGHTS = (1, 3, 3, 1)  # of two cells and the one on each side of them


def half(shape, dtype):
    return (shape[0] // 2, shape[1] // 2, *shape[2:]), dtype


@meshrun.map_blocks(halo=(1, 1), boundary="nearest", out=half)
def downsample(block, *, out, xp):
    """Halve the width and height of a picture; both must be even."""
    rows, columns = 2 * out.shape[0], 2 * out.shape[1]
    total = xp.zeros(out.shape, "float32")
    for i, above in enumerate(WEIGHTS):
        for j, beside in enumerate(WEIGHTS):
            total += xp.float32(above * beside) * block[i : i + rows : 2, j : j + columns : 2]
    out[...] = xp.rint(total / 64)
