"""One pass over arrays. `in_memory` has a block for each rank, `streamed` passes an array through in chunks,
`folders` maps a folder of images and `reduce` reduces an array. It knows no time steps, no command line and
no record. Others use `in_memory.Pipeline`, `streamed.streaming` and `reduce.Tiles`.
"""
