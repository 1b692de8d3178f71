"""Array files and what keeps an output whole: one module a format, the registry in `formats`, the journal of
an unfinished output and the transaction that commits or removes it. It knows nothing of ranks. Others use
`formats.open_source`, `formats.open_sink`, `formats.commit`, `journal.Journal` and `transaction`.
"""
