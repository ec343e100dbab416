"""The file manager of one database: creates, links, hands over and deletes its files.

Physical files are named by UUIDs, so that no two subtasks collide. Where the file system is local
or mounted, `materialize` gives RocksDB a real file by hard link (a symbolic link where links are
refused); on an object store the mapping alone is the link.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...backends.errors import UsageError
from ...backends.landing import reading, writing
from ...backends.request import locate
from ..handles import FileHandle, SegmentHandle
from .mapping import FileLike, FileMapping, PhysicalFile, normal
from .ownership import Ownership, ownership_of_new_file
from .second_name import second_name

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LOG = logging.getLogger("statelift")


class FileManager:
    """Files of one database over any fsspec file system.

    Args:
        directory: the working directory, in which shareable files are created. Where it lies
            below a checkpoint's shared directory, snapshots reuse its files in place.
        private_directory: where private files are created; by default below ``directory``.
        resolve: from a handle to the path of its bytes, e.g. ``CheckpointLocation.resolve``.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        directory: str,
        *,
        private_directory: str | None = None,
        resolve: Callable[[FileLike], str] | None = None,
    ) -> None:
        self.filesystem = filesystem
        self.directory = directory.rstrip("/")
        self.private_directory = (private_directory or f"{self.directory}/private").rstrip("/")
        self.mapping = FileMapping()
        self._resolve = resolve or uri_of
        self._lock = threading.RLock()

    def create(self, path: str, *, overwrite: bool = False) -> PhysicalFile:
        """A new physical file for a logical path; the caller writes to its ``path``.

        Raises:
            DestinationError: the path exists and ``overwrite`` is not set.
        """
        ownership = ownership_of_new_file(path)
        parent = self.directory if ownership is Ownership.SHAREABLE else self.private_directory
        file = PhysicalFile(f"{parent}/{uuid.uuid4().hex}", ownership)
        self._release(self.mapping.add(path, file, overwrite=overwrite))
        with writing(parent):
            self.filesystem.makedirs(parent, exist_ok=True)
        return file

    def restore(self, path: str, handle: FileLike, *, overwrite: bool = False) -> PhysicalFile:
        """Let a logical path stand for a checkpoint's file, which stays the coordinator's."""
        source = self._resolve(handle)
        file = PhysicalFile(source, Ownership.NOT_OWNED, handle)
        self._release(self.mapping.add(path, file, overwrite=overwrite))
        return self.mapping.get(path)

    def hand_over(self, path: str, handle: FileLike) -> PhysicalFile:
        """Give the file behind a path to the coordinator, for good.

        Raises:
            UsageError: the file is private, or was handed over under another handle.
        """
        with self._lock:
            file = self.mapping.get(path)
            file.hand_over(handle)
            return file

    def link(self, source: str, target: str) -> int:
        """See `FileMapping.link`."""
        return self.mapping.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory: a change of the map, whatever the size."""
        for file in self.mapping.rename(source, target):
            self._release(file)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Forget a file, or with ``recursive`` all files below a directory.

        A physical file goes with its last path, unless the database does not own it.

        Raises:
            SourceNotFound: no such file, or a directory without ``recursive``.
        """
        if normal(path) in self.mapping or not recursive:
            self._release(self.mapping.remove(path))
            return
        for each in self.mapping.paths(path):
            self._release(self.mapping.remove(each))

    def exists(self, path: str) -> bool:
        """Whether a logical file, or a directory with files, is there."""
        clean = normal(path)
        return clean in self.mapping or bool(self.mapping.paths(clean))

    def materialize(self, path: str, target: str) -> str:
        """Give the database a real local file for a logical path, without reading its bytes.

        Returns:
            how: ``hard-link`` or ``symbolic-link``.

        Raises:
            UsageError: the path stands for a part of a file, which no link can give.
            DestinationError: ``target`` exists or cannot be made.
            SourceNotFound: the physical file is gone.
        """
        file = self.mapping.get(path)
        if isinstance(file.handle, SegmentHandle):
            raise UsageError(f"{path} is a part of {file.path}", remedy="copy it, or read it through the view")
        source = os.path.abspath(locate(file.path).key)
        with reading(source):
            os.stat(source)
        with writing(target):
            os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
            return second_name(source, target, symbolic=True)

    def close(self) -> None:
        """Forget every path and delete what the database owns; its directories go if that leaves them empty."""
        for path in self.mapping.paths():
            self._release(self.mapping.remove(path))
        for directory in (self.private_directory, self.directory):
            with contextlib.suppress(OSError):
                if not self.filesystem.ls(directory, detail=False):
                    self.filesystem.rmdir(directory)

    def _release(self, file: PhysicalFile | None) -> None:
        if file is not None and file.ownership is not Ownership.NOT_OWNED:
            self._remove(file.path)

    def _remove(self, path: str) -> None:
        try:
            self.filesystem.rm_file(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            # A file that stays behind costs space; the orphan sweep finds it.
            _LOG.warning("could not remove %s: %s", path, error)


def uri_of(handle: FileLike) -> str:
    """Path of a handle that needs no checkpoint to be resolved."""
    file = handle.file if isinstance(handle, SegmentHandle) else handle
    return file.uri if isinstance(file, FileHandle) else file.path
