"""Blocks and chunks on their way: read, copied, exchanged, computed, written; in memory or streamed, with
work stealing between ranks and resumption of an unfinished output. It knows no command line and no record.
Others use `in_memory.Pipeline`, `streaming` and `reduce.Tiles`.
"""
