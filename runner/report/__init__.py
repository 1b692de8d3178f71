"""Reports on a run: times of phases and spans, the limiting stage, progress, the timeline, tables and the
record. Plain values in, text and pictures out; it collects nothing from ranks. Others use `phases.Phases`,
`spans`, `units`, `table` and `record`.
"""
