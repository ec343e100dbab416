"""Which checkpoints use which shared file, and so which files nobody needs any more.

A file is known by its URI; what it *is* by a key made of its database lineage, its name there, its
size and its checksum. Two uploads of one key are duplicates: the confirmed one wins.
"""

from __future__ import annotations

import threading
from collections.abc import Set
from dataclasses import dataclass, field


@dataclass(eq=False)
class SharedFile:
    """One shared file and its users.

    Args:
        created_by: checkpoint that first brought it.
        confirmed: whether a completed checkpoint uses or used it.
        deletable: False for files of a snapshot that was restored without being claimed.
        users: checkpoints, pending or completed, that need it.
        holders: running databases that read it in place, whether or not a checkpoint names it.
    """

    uri: str
    created_by: int
    confirmed: bool = False
    deletable: bool = True
    users: set[int] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


class SharedFileRegistry:
    """The register. It decides; it deletes nothing itself. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._files: dict[str, SharedFile] = {}
        self._keys: dict[str, SharedFile] = {}

    def __contains__(self, uri: object) -> bool:
        return uri in self._files

    def users_of(self, uri: str) -> frozenset[int]:
        with self._lock:
            file = self._files.get(uri)
            return frozenset(file.users) if file else frozenset()

    def register(
        self, checkpoint: int, key: str, uri: str, *, holder: str | None = None, deletable: bool = True
    ) -> str:
        """Record that a checkpoint uses a file.

        Args:
            holder: the running database that handed the file over and goes on reading it;
                None for a copy.

        Returns:
            the URI that the checkpoint shall name: ``uri``, or that of a confirmed file with the
            same key, in which case ``uri`` is a duplicate that nobody needs.
        """
        with self._lock:
            known = self._keys.get(key)
            if known is not None and known.uri != uri and known.confirmed:
                known.users.add(checkpoint)
                return known.uri
            file = self._files.get(uri)
            if file is None:
                file = SharedFile(uri, checkpoint, deletable=deletable)
                self._files[uri] = file
            if holder is not None:
                file.holders.add(holder)
            # An unconfirmed file of the same key loses the key, and goes with its own checkpoint.
            self._keys[key] = file
            file.keys.add(key)
            file.users.add(checkpoint)
            return uri

    def confirm(self, checkpoint: int) -> None:
        """The checkpoint completed: its files are good."""
        with self._lock:
            for file in self._files.values():
                if checkpoint in file.users:
                    file.confirmed = True

    def release(self, checkpoint: int) -> list[str]:
        """The checkpoint was aborted or subsumed. Returns files to delete.

        A file that a running database reads in place stays until that database lets go of it.
        """
        with self._lock:
            for file in self._files.values():
                file.users.discard(checkpoint)
            return self._drop()

    def hold(self, holder: str, uris: Set[str]) -> list[str]:
        """A running database says which files it reads in place, with a checkpoint that completed.

        This closes the original's leak: a file that was handed over to a checkpoint which then
        aborted is let go here once the database has dropped it. Returns files to delete.
        """
        with self._lock:
            for file in self._files.values():
                if file.uri in uris:
                    file.holders.add(holder)
                else:
                    file.holders.discard(holder)
            return self._drop()

    def forget_holders(self) -> list[str]:
        """The databases of an earlier run are gone. Returns files to delete."""
        with self._lock:
            for file in self._files.values():
                file.holders.clear()
            return self._drop()

    def _drop(self) -> list[str]:
        unused = [file for file in self._files.values() if not file.users and not file.holders]
        for file in unused:
            del self._files[file.uri]
            for key in file.keys:
                if self._keys.get(key) is file:
                    del self._keys[key]
        return [file.uri for file in unused if file.deletable]
