"""Checksums of what crosses ranks: the option `checksum`.

`sums` computes them, of host or device arrays; `checked` wraps communicators, which then send one beside each
message and compare it on the receiver. It knows neither halos nor jobs.
"""

MAY_NOT_IMPORT = ("meshrun.runner.arrays.halo", "meshrun.runner.job")
