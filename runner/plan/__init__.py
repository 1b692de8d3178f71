"""Decisions made before a run starts: the partition of an array, the cells of a halo and of a redistribution,
the size of chunks, and the cells that a verification compares. Pure arithmetic on shapes and rates. It knows
neither array files, ranks nor distributed arrays. Others use `grid`, `halo`, `redistribution`, `window`,
`chunking`, `steps` and `task`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.storage", "meshrun.runner.world", "meshrun.runner.arrays")
