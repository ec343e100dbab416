"""Deleting one checkpoint or savepoint, and of its files those that no other checkpoint of its base needs."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from ...backends.errors import AccessDenied, CheckpointError, CheckpointNotFound, SourceNotFound
from ...backends.request import locate
from .contents import sizes_of_files
from .layout import CheckpointLocation
from .orphans import SAVEPOINT_FILE, needed_files
from .store import CheckpointStore


@dataclass(frozen=True)
class Removal:
    """A checkpoint that is gone.

    Args:
        files: URIs that were deleted, without the metadata.
        kept: URIs that other checkpoints need, or that lie outside of the base.
    """

    location: CheckpointLocation
    files: tuple[str, ...]
    bytes: int
    kept: tuple[str, ...]


def remove_checkpoint(store: CheckpointStore, checkpoint: str, *, force: bool = False) -> Removal:
    """Delete a checkpoint or savepoint: its metadata first, so that a half-done removal shows no broken one.

    A running job goes on from its newest checkpoint and names that one's files in the next: so the
    newest is only deleted with ``force``. So is a savepoint, which is its user's and has no newer
    one; files of it that a checkpoint of a base around it uses (it was claimed) are kept. What is
    damaged goes with ``force`` too. What an interrupted removal leaves, the orphan sweep finds.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CheckpointError: ``force`` is needed; or another checkpoint is damaged, so that nobody knows
            which files it needs.
    """
    location, own = _own_files(store, checkpoint, force=force)
    others = [each for base in _bases(location) for each in _listed(store, base) if each.directory != str(location)]
    if not force:
        _require_newer(location, others)
    needed: set[str] = set()
    for other in others:
        where, metadata = store.read(other.directory)
        needed |= needed_files(where, metadata.states)
    gone = {uri: size for uri, size in own.items() if uri not in needed and _may_go(location, uri)}
    store.objects.delete([location.metadata])
    store.objects.delete(sorted(gone))
    _remove_if_empty(location.directory)
    return Removal(location, tuple(sorted(gone)), sum(gone.values()), tuple(sorted(own.keys() - gone.keys())))


def _bases(location: CheckpointLocation) -> list[str]:
    """The directories whose checkpoints may use its files: around a savepoint, all that it lies in."""
    if not location.is_savepoint:
        return [location.base]
    root = location.directory.removesuffix(locate(location.directory).key)
    parents = location.directory.removeprefix(root).split("/")[:-1]
    around = [root + "/".join(parents[:count]) for count in range(len(parents), 0, -1)]
    return [each for each in (*around, root.rstrip("/")) if each and not each.endswith(":")]


def _listed(store: CheckpointStore, base: str) -> list[CheckpointLocation]:
    try:
        return store.list(base)
    except AccessDenied:
        # Whoever may not list a bucket's root has no base of checkpoints there.
        return []


def _require_newer(location: CheckpointLocation, others: list[CheckpointLocation]) -> None:
    if location.is_savepoint:
        raise CheckpointError(f"{location} is a savepoint", remedy="--force, once nobody needs it any more")
    if not any(each.checkpoint_id > location.checkpoint_id for each in others):
        only = "the newest" if others else "the only"
        raise CheckpointError(
            f"{location} is {only} checkpoint of its base", remedy="--force, once no job needs it any more"
        )


def _own_files(store: CheckpointStore, checkpoint: str, *, force: bool) -> tuple[CheckpointLocation, dict[str, int]]:
    """The location, and what the metadata names and what lies in the snapshot's own directory, with sizes."""
    location, named = CheckpointLocation.named(checkpoint), dict[str, int]()
    try:
        location, metadata = store.read(checkpoint)
        named = sizes_of_files(location, metadata)
    except CheckpointNotFound:
        raise
    except CheckpointError:
        # Of a directory without a snapshot's name only its first line says what it is.
        if not force or (location.is_savepoint and not store.is_snapshot(checkpoint)):
            raise
    with contextlib.suppress(SourceNotFound):
        named |= {
            each.uri: each.size for each in store.objects.list(location.directory + "/") if _is_own(location, each.uri)
        }
    named.pop(location.metadata, None)
    return location, named


def _is_own(location: CheckpointLocation, uri: str) -> bool:
    """Whether a file of the directory is the snapshot's: beside a savepoint its user may keep files."""
    return not location.is_savepoint or bool(SAVEPOINT_FILE.fullmatch(uri.removeprefix(location.directory + "/")))


def _may_go(location: CheckpointLocation, uri: str) -> bool:
    """Whether a file is this base's to delete; what tasks own is theirs."""
    own = location.directory + "/"
    return uri.startswith(own if location.is_savepoint else (own, location.shared + "/"))


def _remove_if_empty(directory: str) -> None:
    if locate(directory).is_local:
        with contextlib.suppress(OSError):
            os.rmdir(locate(directory).key)
