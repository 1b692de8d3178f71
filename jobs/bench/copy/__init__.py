"""`meshrun bench copy`: nvbandwidth's test cases by name, with checked data and marked outliers.

cases               the test cases: transfers of each cell of the matrix, engine, and the reported rate
engines             queue a transfer on a stream: by copy engine or by kernel
buffers             memory of transfers, also of other processes, and the size that fits
transfers           run transfers behind a gate, and verify their data
latency             a chain of dependent loads
measure             measure a case cell by cell; statistics of samples
host                copies inside host memory, without a GPU
outliers            slow cells, and the best cell against its nominal peak
nvbandwidth_text, record, heatmap       output as text, JSON and plots
run, cli            run the cases on the ranks; the command

It knows neither bench's collectives nor lessons. `jobs.bench.nvbandwidth` measures with it; others use
`jobs.bench.cli`.
"""

MAY_NOT_IMPORT = ("meshrun.jobs.bench.collectives", "meshrun.jobs.bench.lessons")
