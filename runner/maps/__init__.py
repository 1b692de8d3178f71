"""One pass over arrays: read, exchange, compute, write. `in_memory` has a block for each rank, `streamed`
passes an array through in chunks, `folders` maps the images of a folder, and `reduce` reduces an array.
Before a run, `split_probe` tries whether a job's function may be split. It knows no records. Others use
`in_memory.Pipeline`, `streamed.streaming` and `reduce.Tiles`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.run",)
