"""A weighted blend of two pictures of the same shape, here a photograph and its edges: two inputs, one
output, one pass.

    meshrun run laplacian examples/rocket.jpg edges.png
    meshrun run examples/blend.py examples/rocket.jpg edges.png blended.jpg --weight 0.4
"""

import meshrun


@meshrun.map_blocks
def blend(first, second, *, weight: float = 0.5):
    """Blend two pictures.

    weight: of the second picture; the first one has the rest.
    """
    mixed = (1 - weight) * first.astype("float64") + weight * second
    return mixed.round().clip(0, 255).astype("uint8")
