"""The text of CUDA kernels for a graph: of one pass over the blocks, and of several steps.

`single_pass` is the kernel of one pass, `fill` that of expressions without halos, `steps/` those of several
steps. Nothing here compiles or launches them; kernels/ has the headers that they include.
"""
