r"""Conway's Game of Life on a board whose opposite edges meet: one byte a cell.

    python3 examples/make_inputs.py
    meshrun run examples/life.py inputs/board.npy board.npy \
        --steps 600 --frames life.gif --every 8 --frame-range 0:1 --frame-colors gray
"""

import meshrun


@meshrun.map_blocks(halo=1, boundary="wrap")
def life(board):
    """Take one generation: a cell lives on with two or three living neighbours, and is born with three."""
    rows = board[:-2] + board[1:-1] + board[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]  # living cells of 3x3
    alive = board[1:-1, 1:-1]
    return ((around == 3) | ((around == 4) & (alive == 1))).astype(board.dtype)
