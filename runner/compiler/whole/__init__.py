"""A function of whole arrays, as NumPy calls it, becomes a program that computes each cell by itself.

An index of a traced array is a place: `a[0] = v` writes the cells at place 0, and no others. `graph` has the
nodes for places beside those of `compiler.trace.graph`, `array` the stand-ins for NumPy's arrays, `functions`
NumPy's functions on them, `between` reductions and arrays between stages, `trace` calls the user's function,
`pieces` cuts a block where conditions change, `point_code` and `chain_code` write C++ of cells near points
and of many small stages, `block_form` makes a job of blocks of it. It knows neither devices, ranks nor array
files. Others use `block_form.block_form`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.device", "meshrun.runner.world", "meshrun.runner.storage")
