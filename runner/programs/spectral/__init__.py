"""Functions with Fourier transforms or products, whose parts are programs.

`layouts` chooses how their arrays are split, `spectral_run` runs the parts. It knows neither jobs nor array
files. Others use `spectral_run.SpectralRun`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.job", "meshrun.runner.storage")
