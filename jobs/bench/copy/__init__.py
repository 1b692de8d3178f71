"""`meshrun bench copy`: nvbandwidth's test cases by its names, checked, with outliers marked.

cases               what each case copies, from where to where, by which engine, and what is reported
patterns            the transfers of a cell of the matrix, which run at the same time
engines             how a transfer is queued on a stream: by copy engine or by kernel
buffers             the memory of transfers, also of other processes, and the size that fits
transfers           transfers timed behind a gate, their data verified
latency             a chain of loads
measure             a case cell by cell; statistics of samples
host                copies inside host memory, if there is no GPU
outliers            slow cells, and how near the best comes to its nominal peak
nvbandwidth_text, record, heatmap       text, JSON, plots
run, cli            all of it, by the ranks; the command

It may not know the collectives or the lessons. Others use `jobs.bench.cli`.
"""
