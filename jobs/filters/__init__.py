"""The built-in jobs on arrays: `grayscale`, `laplacian`, `convolve`, `elementwise`, `statistics`, `heat`, and
what only they use. They know neither ranks nor array files: the runner gives them blocks. Others use the jobs
by their entry points.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world", "meshrun.runner.storage")
