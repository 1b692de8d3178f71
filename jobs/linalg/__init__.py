"""Linear algebra over ranks: `matmul` multiplies matrices. It builds on the runner's rooms and knows no
command line. Others use `matmul.job.matmul` and `matmul.blocks.matmul`.
"""
