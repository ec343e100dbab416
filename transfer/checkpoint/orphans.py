"""Files below a base that no checkpoint or savepoint needs: what crashes and lost races leave behind.

A checkpoint leaves them in ``chk-<n>/`` and ``shared/``. A savepoint whose process was killed leaves
a directory of its own, anywhere below the base, that holds a savepoint's files and no ``_metadata``.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ...backends.locked_directories import sweep
from ...backends.request import locate
from ..handles import InMemoryHandle, KeyedStateHandle
from ..objects import StoredObject
from .layout import METADATA, SHARED, TASKOWNED, CheckpointLocation
from .store import CheckpointStore, base_of

#: Younger files may belong to a checkpoint or savepoint that is being written. Seconds.
SAFE_AGE = 24 * 3600.0

_CHECKPOINT_FILE = re.compile(r"chk-(0|[1-9][0-9]*)/.+", re.DOTALL)
_CHECKPOINT_NAME = re.compile(r"chk-(0|[1-9][0-9]*)")
#: Random names, and the one that Parquet readers look for; see `transfer.savepoint.target`.
SAVEPOINT_FILE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.parquet)?|_common_metadata")


def needed_files(location: CheckpointLocation, states: Iterable[KeyedStateHandle]) -> set[str]:
    """URIs of every file that a checkpoint's states lie in."""
    return {
        location.resolve(file.handle).uri
        for state in states
        for file in (*state.shared, *state.private)
        if not isinstance(file.handle, InMemoryHandle)
    }


def find_orphans(store: CheckpointStore, base: str, *, older_than: float = SAFE_AGE) -> Iterator[StoredObject]:
    """Files that no checkpoint or savepoint below this directory names.

    Files are listed before the snapshots are read: what a checkpoint that completes meanwhile names
    is then either not listed or known to be needed. Files that checkpoints of *another* base use
    (LEGACY, or a NO_CLAIM restore that has not completed a checkpoint yet) cannot be seen from here:
    sweep a base only when no other job depends on it.

    Args:
        base: of checkpoints; or a directory of savepoints, or where a single one was begun.
        older_than: seconds since the last change; younger files are left alone, and so is all of a
            savepoint's directory while one file in it is younger.

    Raises:
        CheckpointError: a snapshot's metadata cannot be read: then nothing can be said.
    """
    root = base_of(base)
    limit = time.time() - older_than
    listed = list(store.objects.list(root + "/"))
    found = [each for each in listed if is_checkpoint_file(each.uri, root) and each.modified <= limit]
    found += _begun_savepoints(listed, root, limit)
    needed: set[str] = set()
    for location in (*store.list(root), *store.others(root)):
        where, metadata = store.read(location.directory)
        needed |= needed_files(where, metadata.states)
        needed.add(where.metadata)
    yield from (each for each in found if each.uri not in needed)


def is_checkpoint_file(uri: str, root: str) -> bool:
    """Whether a file lies where the checkpoints of a base have theirs."""
    path = uri.removeprefix(root + "/")
    if path.startswith(f"{SHARED}/"):
        return True
    return bool(_CHECKPOINT_FILE.fullmatch(path)) and not path.endswith(f"/{METADATA}")


def _begun_savepoints(listed: Iterable[StoredObject], root: str, limit: float) -> Iterator[StoredObject]:
    """Files of directories that hold a savepoint's files, nothing else, and no ``_metadata``."""
    directories: dict[str, list[StoredObject]] = defaultdict(list)
    for each in listed:
        directories[each.uri.rpartition("/")[0]].append(each)
    for directory, files in directories.items():
        below = directory.removeprefix(root).strip("/").split("/")
        if any(_is_reserved(name) for name in (*root.split("/")[-2:], *below)):
            continue
        ours = all(SAVEPOINT_FILE.fullmatch(each.uri.rpartition("/")[2]) for each in files)
        if ours and all(each.modified <= limit for each in files):
            yield from files


def _is_reserved(name: str) -> bool:
    """Whether a directory of this name is a checkpoint's, where random names need no ``_metadata`` beside them."""
    return name in {SHARED, TASKOWNED} or bool(_CHECKPOINT_NAME.fullmatch(name))


def remove_orphans(store: CheckpointStore, base: str, *, older_than: float = SAFE_AGE) -> list[StoredObject]:
    """Delete what `find_orphans` finds, and on a disk the staging directories of dead processes. Returns the files."""
    orphans = list(find_orphans(store, base, older_than=older_than))
    store.objects.delete([each.uri for each in orphans])
    if locate(base_of(base)).is_local:
        _tidy(locate(base_of(base)).key, {os.path.dirname(locate(each.uri).key) for each in orphans})
    return orphans


def _tidy(root: str, emptied: Iterable[str]) -> None:
    for directory, _, _ in os.walk(root):
        sweep(directory)
    for each in emptied:
        with contextlib.suppress(OSError):
            os.rmdir(each)
