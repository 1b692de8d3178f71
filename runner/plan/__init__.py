"""Decisions made before a run starts: the partition of an array, the cells of a halo, the size of chunks, the
cells that a verification compares, and a forecast of time and memory on a machine. Pure arithmetic on shapes
and rates: it may not know files, running ranks or arrays. Others use `grid`, `halo`, `window`, `chunking`,
`task` and `forecast`.
"""
