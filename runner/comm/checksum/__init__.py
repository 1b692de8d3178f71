"""Checksums of what crosses ranks: the option `checksum`.

`sums` computes them, of host or device arrays; `checked` wraps communicators, which then send one beside each
message and compare it on the receiver. Knows nothing of halos, steps' kernels and jobs.
"""
