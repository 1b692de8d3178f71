"""The built-in jobs on arrays: `grayscale`, `laplacian`, `convolve`, `elementwise`, `statistics`, `heat`, and
what only they use. They know neither ranks nor files: the runner gives them blocks. Others use the jobs
by their entry points.
"""
