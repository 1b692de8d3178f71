"""A function of blocks, called with stand-ins, becomes a graph of operations on numbers.

`trace` records what the function does; `graph` holds it; `evaluate` computes it with NumPy, as
the oracle of every kernel. It knows neither devices nor ranks.
"""

MAY_NOT_IMPORT = ("meshrun.runner.device", "meshrun.runner.world")
