"""Files below a base that no checkpoint needs: what crashes and lost races leave behind."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator

from ..handles import InMemoryHandle, KeyedStateHandle
from ..objects import StoredObject
from .layout import METADATA, SHARED, CheckpointLocation
from .store import CheckpointStore, base_of

#: Younger files may belong to a checkpoint that is being written. Seconds.
SAFE_AGE = 24 * 3600.0

_CHECKPOINT_FILE = re.compile(r"chk-(0|[1-9][0-9]*)/.+", re.DOTALL)


def needed_files(location: CheckpointLocation, states: Iterable[KeyedStateHandle]) -> set[str]:
    """URIs of every file that a checkpoint's states lie in."""
    return {
        location.resolve(file.handle).uri
        for state in states
        for file in (*state.shared, *state.private)
        if not isinstance(file.handle, InMemoryHandle)
    }


def find_orphans(store: CheckpointStore, base: str, *, older_than: float = SAFE_AGE) -> Iterator[StoredObject]:
    """Files of ``chk-*/`` and ``shared/`` that no completed checkpoint of this base names.

    Files are listed before the checkpoints are read: what a checkpoint that completes meanwhile
    names is then either not listed or known to be needed. Files that checkpoints of *another* base
    use (LEGACY, or a NO_CLAIM restore that has not completed a checkpoint yet) cannot be seen from
    here: sweep a base only when no other job depends on it.

    Args:
        older_than: seconds since the last change; younger files are left alone.

    Raises:
        CheckpointError: a checkpoint's metadata cannot be read: then nothing can be said.
    """
    root = base_of(base)
    limit = time.time() - older_than
    found = [each for each in store.objects.list(root + "/") if _is_ours(each.uri, root) and each.modified <= limit]
    needed: set[str] = set()
    for location in store.list(root):
        _, metadata = store.read(location.directory)
        needed |= needed_files(location, metadata.states)
        needed.add(location.metadata)
    yield from (each for each in found if each.uri not in needed)


def _is_ours(uri: str, root: str) -> bool:
    path = uri.removeprefix(root + "/")
    if path.startswith(f"{SHARED}/"):
        return True
    return bool(_CHECKPOINT_FILE.fullmatch(path)) and not path.endswith(f"/{METADATA}")


def remove_orphans(store: CheckpointStore, base: str, *, older_than: float = SAFE_AGE) -> list[StoredObject]:
    """Delete what `find_orphans` finds. Returns it."""
    orphans = list(find_orphans(store, base, older_than=older_than))
    store.objects.delete([each.uri for each in orphans])
    return orphans
