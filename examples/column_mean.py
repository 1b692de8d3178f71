"""The mean of each column of an array: a reduction along the first axis, whose
result is an array.

    meshrun run examples/column_mean.py inputs/heat.npy means.npy
"""

import meshrun


@meshrun.reduce_blocks(
    combine=lambda a, b: (a[0] + b[0], a[1] + b[1]), finish=lambda p: p[0] / p[1], whole_rows=True
)
def column_mean(rows):
    """Sums and number of some rows; sums are made in float64."""
    return rows.sum(axis=0, dtype="float64"), len(rows)
