"""Array files and durable output: `formats` reads and writes files, `journal` records the finished chunks of
an unfinished output, `transaction` commits or removes the outputs of a run, and `checkpoint_folder` keeps
checkpoints. It knows no ranks. Others use `formats.registry`, `paths`, `file_errors`, `journal.Journal` and
`transaction`.
"""

MAY_NOT_IMPORT = ("meshrun.runner.world",)
