"""The product of two matrices: `job` declares it and passes files through, `plan` chooses the algorithm by
bytes and memory, `ring`, `summa` and `gathered` are the algorithms, `products` multiplies on one rank,
`precision` says how values are rounded, `freivalds` checks, `blocks` multiplies blocks in memory. Others use
`job` and `blocks`.
"""
