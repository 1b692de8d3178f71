"""Inputs that one rank decodes as a whole: refuse what its host's memory does not hold, then decode them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshrun.runner.errors import UserError
from meshrun.runner.options.form import Form
from meshrun.runner.spelling import option
from meshrun.runner.storage.formats.registry import Source, decode, open_source
from meshrun.runner.system.host_memory import host_memory


def open_decoded(
    paths: Sequence[Path], forms: Sequence[Form | None] | None = None, limit: int | None = None
) -> list[Source]:
    """Open arrays; decode those that are pictures, if the memory holds all of them.

    forms: of files without a header. limit: as of `check_decoded`.
    """
    sources = [*map(open_source, paths, forms or [None] * len(paths))]
    check_decoded(sources, limit)
    return [*map(decode, sources)]


def check_decoded(sources: Sequence[Source], limit: int | None, memory: int | None = None) -> None:
    """Raise UserError, before they are decoded, for pictures that together need more memory than there is.

    limit: bytes of host_memory; None if it is not given: all of the host's. memory: bytes of the host, 0 if
    they are not known; None: of this one, or the limit of its container or job.
    """
    pictures = [source for source in sources if source.decoded_bytes]
    needed = sum(source.decoded_bytes for source in pictures)
    names = [str(source.path) for source in pictures]
    if limit is not None and needed > limit:
        need = "needs, which is" if len(names) == 1 else "need, which are"
        raise UserError(
            f"{option('host_memory')} is less than {' and '.join(names)} {need} decoded as a whole",
            got=f"{limit:,} bytes",
            expected=f"at least {needed:,}",
        )
    if limit is not None or not needed:
        return
    memory = host_memory() if memory is None else memory
    if 0 < memory < needed:
        raise UserError(
            f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not fit the host's memory",
            got=f"{needed:,} bytes decoded",
            expected=f"at most {memory:,}",
        )
