"""Decisions made before a run moves a byte: how an array is cut, which cells a halo needs, how large chunks
are, which cells a verification looks at, and what all of it will take on a machine. Pure arithmetic on shapes
and rates: no files, no ranks running, no arrays. Others use `grid`, `halo`, `window`, `chunking`, `task` and
`forecast`.
"""
