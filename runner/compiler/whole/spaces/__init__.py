"""Functions of whole arrays with Fourier transforms or products of fields: their spaces and parts.

A transform of real numbers has about half as many cells along an axis: its result shares no space with its
operand. `spaces` has a recorder for each shape, and brings lines and values from one to another; `fourier`
is numpy.fft on traced arrays; `matrices` has products of fields; `parts` cuts what was recorded into programs
of one space each, between which transforms and products are done. It knows no ranks.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world",)
