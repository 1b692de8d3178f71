"""Linear algebra over ranks: `matmul` multiplies matrices. It builds on the runner's rooms, and knows neither
benchmarks nor the command line. Others use `matmul.job.matmul` and `matmul.blocks.matmul`.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.bench", "meshrun.launch.cli", "click")
