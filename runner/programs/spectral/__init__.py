"""Functions with Fourier transforms or products, whose parts are programs.

`layouts` chooses how their arrays are split, `lifetimes` finds when these are needed, and `spectral_run` runs
the parts. `spectral_memory` says what all of it takes. It knows neither jobs nor array files. Others use
`spectral_run.SpectralRun` and `spectral_memory.SpectralMemory`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.storage")
