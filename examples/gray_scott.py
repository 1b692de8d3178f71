r"""Two substances react and spread, and form a pattern (J. E. Pearson, "Complex Patterns in a Simple System",
Science 261, 1993): two fields, each of which is an input and an output.

    python3 examples/make_inputs.py
    meshrun run examples/gray_scott.py inputs/u.npy inputs/v.npy u.npy v.npy \
        --steps 8000 --frames gray_scott --every 2000 --frame-field v --frame-range 0:0.4
"""

import meshrun


def spread(field):
    """Return the sum of differences from the four neighbours."""
    centre = field[1:-1, 1:-1]
    return field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:] - 4 * centre


@meshrun.map_blocks(halo=1, boundary="wrap", outputs=("next_u", "next_v"), feeds=("u", "v"))
def gray_scott(u, v, *, feed: float = 0.037, kill: float = 0.06):
    """Take one step of the Gray-Scott model.

    feed: rate at which u is supplied.
    kill: rate at which v is removed, beside `feed`.
    """
    here_u, here_v = u[1:-1, 1:-1], v[1:-1, 1:-1]
    reaction = here_u * here_v * here_v
    next_u = here_u + 0.2 * spread(u) - reaction + feed * (1 - here_u)
    next_v = here_v + 0.1 * spread(v) + reaction - (feed + kill) * here_v
    return next_u, next_v
