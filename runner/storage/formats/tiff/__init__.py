"""TIFF through tifffile: a picture, or equal pages as one array with the pages' axes first.

`contents` chooses the pages that make up the array; `pages` decodes their strips and tiles; `shown` turns
stored samples into the picture's; `sink` writes. Others use `open_source` and `open_sink`, by the registry,
and `appearance`.
"""

from meshrun.runner.storage.formats.tiff.contents import appearance, open_source
from meshrun.runner.storage.formats.tiff.sink import open_sink

__all__ = ["appearance", "open_sink", "open_source"]
