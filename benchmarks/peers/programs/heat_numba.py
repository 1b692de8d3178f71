# python heat_numba.py IN OUT N
import sys

import numpy as np
from numba import cuda

source, target, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])


@cuda.jit
def step(now, after):
    column, row = cuda.grid(2)
    rows, columns = now.shape
    if row < rows and column < columns:
        above, below = now[max(row - 1, 0), column], now[min(row + 1, rows - 1), column]
        left, right = now[row, max(column - 1, 0)], now[row, min(column + 1, columns - 1)]
        here = now[row, column]
        after[row, column] = here + np.float32(0.2) * (above + below + left + right - np.float32(4) * here)


now = cuda.to_device(np.load(source))
after = cuda.device_array_like(now)
rows, columns = now.shape
for _ in range(steps):
    step[((columns + 63) // 64, (rows + 3) // 4), (64, 4)](now, after)
    now, after = after, now
np.save(target, now.copy_to_host())
