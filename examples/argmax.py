"""The largest value of an array and its place: a reduction that knows where each
block is.

    meshrun run examples/argmax.py inputs/before.npy
"""

import meshrun


@meshrun.reduce_blocks(
    combine=lambda a, b: b if b[0] > a[0] else a,  # of equal ones, the first
    finish=lambda p: {"value": p[0], "index": p[1]},
)
def argmax(block, *, here, xp):
    """Value and index of the largest cell."""
    cell = xp.unravel_index(block.argmax(), block.shape)
    return float(block[cell]), [int(i) + start for i, start in zip(cell, here.offset, strict=True)]
