"""A second name for a file: what reuse is on a disk. No byte is read or moved."""

from __future__ import annotations

import os

HARD_LINK = "hard-link"
SYMBOLIC_LINK = "symbolic-link"


def second_name(source: str, target: str, *, symbolic: bool) -> str:
    """Let ``target`` stand for the file ``source``, by a hard link.

    Args:
        source: an absolute path.
        symbolic: make a symbolic link where a hard link is refused, e.g. across file systems. It
            lasts as long as ``source`` does, while a hard link is a file of its own.

    Returns:
        how: `HARD_LINK` or `SYMBOLIC_LINK`.

    Raises:
        FileExistsError: ``target`` exists.
        OSError: no link can be made.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        if not symbolic:
            raise
        os.symlink(source, target)
        return SYMBOLIC_LINK
    return HARD_LINK
