"""`meshrun bench memory`: memory performance lessons.

A lesson measures one thing that memory is fast or slow at, checks the results and returns tables, charts and
a few sentences about the figures of this run; docs/lessons.md explains what is behind them. Each lesson has a
package: `lesson` measures, `methods` (or a name of its own) has what is compared, `explain` the sentences.

protocol        what a lesson measures with (Context) and returns (Lesson)
cli, run        the commands, and one lesson on all ranks
show            a lesson as text, JSON and drawing
devices         operations on one GPU stream, or on the host
pseudorandom    data that tells every element's place

A lesson knows neither the command line nor other lessons; clocks, gates, peer memory and checks of data are
those of jobs.measure. From outside only `cli.memory` is used.
"""
