"""One validation from its options to its files and exit status.

`run` starts it on all ranks or on a simulation, `validation` is its state on rank 0, `outputs` writes the
files; `early_end` reports a run that ended early. `cli` uses `options`, `outputs`, `run` and `early_end`.
"""
