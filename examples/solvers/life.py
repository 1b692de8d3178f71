r"""Conway's game of life on whole arrays: slices of neighbours, and edges that stay empty.

python3 examples/solvers/inputs.py
meshrun -n 2 run examples/solvers/life.py inputs/soup.npy after.npy --steps 300 --every 4 --frames life.webp
"""

import meshrun


@meshrun.distribute
def life(z):
    """Compute the next generation. z: 0 or 1, of an integer dtype."""
    n = z[:-2, :-2] + z[:-2, 1:-1] + z[:-2, 2:] + z[1:-1, :-2]
    n = n + z[1:-1, 2:] + z[2:, :-2] + z[2:, 1:-1] + z[2:, 2:]
    birth = (n == 3) & (z[1:-1, 1:-1] == 0)
    survive = ((n == 2) | (n == 3)) & (z[1:-1, 1:-1] == 1)
    z[...] = 0
    z[1:-1, 1:-1][birth | survive] = 1
