"""Rewrites of a graph before code is made from it: branches, strips of rows, exact products.

A pass takes a graph and returns one that computes the same bits. It knows neither devices nor ranks.
"""

MAY_NOT_IMPORT = ("meshrun.runner.device", "meshrun.runner.world")
