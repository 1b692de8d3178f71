"""Move blocks and chunks: read, exchange, compute, write. `in_memory` has a block for each rank, `streamed`
passes an array through in chunks, `steps` takes time steps, `images` maps a folder of images and `reduce`
reduces an array; `halo` fills the halos of blocks. It knows no command line and no record. Others use
`in_memory.Pipeline`, `streamed.streaming`, `steps.stepper` and `reduce.Tiles`.
"""
