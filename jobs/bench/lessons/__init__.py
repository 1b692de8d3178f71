"""`meshrun bench memory`: memory performance lessons.

A lesson measures one property of memory performance, checks the results and returns tables, charts and a few
sentences about the figures of this run; docs/lessons.md explains the background. Each lesson is a package:
`lesson` measures and explains the figures, `methods` (or a specific name) has the methods that are compared.

protocol        Context, the input of a lesson, and Lesson, its result
cli, run        the commands, and running one lesson on all ranks
show            format a lesson as text, JSON and plots
devices         operations on one GPU stream, or on the host
pseudorandom    data in which every element depends on its index

A lesson imports neither the command line nor another lesson; it takes clocks, gates, peer memory and checks
of data from meshrun.jobs.measure. Others use only `cli.memory`.
"""
