"""Array files: one module per format, and `registry`, which picks the module by the file's suffix.

`flat` serves formats whose bytes are laid out as in memory; `containers` serves files that hold several
arrays; `frame_files` writes the frames of a run with time steps; `image_folder` lists a folder of pictures.
It knows neither ranks, journals nor transactions. Others use `registry.open_source`, `registry.open_sink`,
`registry.commit`, `frame_files` and `image_folder`.
"""

MAY_NOT_IMPORT = (
    "meshrun.runner.world",
    "meshrun.runner.storage.journal",
    "meshrun.runner.storage.transaction",
)
