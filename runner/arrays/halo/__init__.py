"""Fill the halos of blocks. `exchange` moves slices between blocks, on any device; between GPUs, the cells
that `boxes` lists are moved by `packed`, with one message for each neighbour, or by `direct`, with stores
into the neighbours' memory. It knows neither jobs nor time steps. Others use `exchange`,
`packed.PackedHalos` and `direct.DirectHalos`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.steps")
