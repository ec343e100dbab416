"""Deleting one checkpoint, and of its files those that no other checkpoint of its base needs."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from ...backends.errors import CheckpointError, CheckpointNotFound, SourceNotFound
from ...backends.request import locate
from .contents import sizes_of_files
from .layout import CheckpointLocation
from .orphans import needed_files
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
    """Delete a checkpoint: its metadata first, so that a half-done removal shows no broken checkpoint.

    A running job goes on from its newest checkpoint and names that one's files in the next: so the
    newest is only deleted with ``force``, and so is one whose metadata is damaged. What an
    interrupted removal leaves behind, the orphan sweep finds.

    Raises:
        CheckpointNotFound: there is no such checkpoint.
        CheckpointError: it is the newest, or damaged, without ``force``; or another checkpoint is
            damaged, so that nobody knows which files it needs.
    """
    location = CheckpointLocation.parse(checkpoint)
    others = [each for each in store.list(location.base) if each.directory != location.directory]
    own = _own_files(store, location, force=force)
    if not force and not any(each.checkpoint_id > location.checkpoint_id for each in others):
        only = "the newest" if others else "the only"
        raise CheckpointError(
            f"{location} is {only} checkpoint of its base", remedy="--force, once no job needs it any more"
        )
    needed: set[str] = set()
    for other in others:
        needed |= needed_files(other, store.read(other.directory)[1].states)
    gone = {uri: size for uri, size in own.items() if uri not in needed and _may_go(location, uri)}
    store.objects.delete([location.metadata])
    store.objects.delete(sorted(gone))
    _remove_if_empty(location.directory)
    return Removal(location, tuple(sorted(gone)), sum(gone.values()), tuple(sorted(own.keys() - gone.keys())))


def _own_files(store: CheckpointStore, location: CheckpointLocation, *, force: bool) -> dict[str, int]:
    """What the metadata names and what lies in the checkpoint's own directory, with sizes."""
    named: dict[str, int] = {}
    try:
        _, metadata = store.read(location.directory)
        named = sizes_of_files(location, metadata)
    except CheckpointNotFound:
        raise
    except CheckpointError:
        if not force:
            raise
    with contextlib.suppress(SourceNotFound):
        named |= {each.uri: each.size for each in store.objects.list(location.directory + "/")}
    named.pop(location.metadata, None)
    return named


def _may_go(location: CheckpointLocation, uri: str) -> bool:
    """Whether a file is this base's to delete; what tasks own is theirs."""
    return uri.startswith((location.directory + "/", location.shared + "/"))


def _remove_if_empty(directory: str) -> None:
    if locate(directory).is_local:
        with contextlib.suppress(OSError):
            os.rmdir(locate(directory).key)
