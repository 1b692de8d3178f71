"""`meshrun bench copy`: nvbandwidth's test cases by its names, checked and judged.

cases       what each case copies, from where to where, by whom, and what of it is reported
engines     how one flow of bytes is put into a stream
lending     the memory that flows need, also of other processes
moving      flows run at the same time, timed behind a gate, their data checked
latency     a chain of loads
measure     a case cell by cell; statistics
host        copies inside the host's memory, where there is no GPU
judge       which cells are odd, and what the hardware allows
show, draw  text, JSON, heat maps
run         all of it, by the ranks
"""
