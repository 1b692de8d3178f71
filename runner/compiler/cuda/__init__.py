"""The text of CUDA kernels for a graph: of one pass over the blocks, and of several steps.

`single_pass` is the kernel of one pass, whose tile `pass_tile` chooses and whose arguments `pass_launch` has;
`fill` is that of expressions without halos, and `steps/` has those of several steps. Nothing here compiles or
launches them; kernels/ has the headers that they include.
"""
