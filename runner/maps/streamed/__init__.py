"""The streamed run: chunks are read, copied, computed, copied back and written, all at the same time.

`streaming` is the run of a map job. `dispatch` processes numbered chunks on all ranks with work stealing;
`loop` overlaps the stages of one rank, and `cpu_engine`, `gpu_engine` and `direct_io` execute them behind the
protocols in `endpoints`. `chunk_agreement` agrees on the chunks, and `resume` continues an unfinished output.
It knows neither time steps nor records. Others use `streaming.StreamedRun`, `dispatch`, `endpoints` and
`chunk_agreement`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.steps", "meshrun.runner.run")
