"""Where the files of a checkpoint lie.

``<base>/chk-<n>/`` holds what belongs to checkpoint ``n`` alone, with ``_metadata`` as its last
file; ``<base>/shared/`` what several checkpoints may use; ``<base>/taskowned/`` what the
checkpoints use and never delete. Paths are kept relative to their directory, so that a whole
base can be moved or copied elsewhere.

A savepoint is a directory of any name that holds all of its files, ``_metadata`` among them: it is
its own base.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from ...backends.errors import CheckpointError
from ...backends.request import locate
from ..handles import FileHandle, RelativeFileHandle, SegmentHandle

METADATA = "_metadata"
EXCLUSIVE = "exclusive"
SHARED = "shared"
TASKOWNED = "taskowned"
SCOPES = (EXCLUSIVE, SHARED, TASKOWNED)
_DIRECTORY = re.compile(r"(?P<base>.+?)/+chk-(?P<id>0|[1-9][0-9]*)(/+_metadata|/*)", re.DOTALL)
#: What nearly all paths look like: for them the closer look is spared.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class CopySource(NamedTuple):
    """Bytes to copy: ``length`` of them from ``offset`` on (None: all) of a file of ``size`` bytes."""

    uri: str
    offset: int
    length: int | None
    size: int


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """One checkpoint below a base, which is a URI or an absolute local path without a slash at its end.

    Args:
        checkpoint_id: of a savepoint, the checkpoint that it was made of.
        is_savepoint: whether ``base`` is itself the directory, whatever its name.
    """

    base: str
    checkpoint_id: int
    is_savepoint: bool = False

    @classmethod
    def parse(cls, uri: str) -> CheckpointLocation:
        """The location named by ``<base>/chk-<n>`` or ``<base>/chk-<n>/_metadata``.

        Raises:
            CheckpointError: it names no checkpoint.
        """
        match = _DIRECTORY.fullmatch(_absolute(uri))
        if match is None or match["base"].endswith(":"):
            raise CheckpointError(f"{uri} is not a checkpoint's directory", remedy="name <base>/chk-<number>")
        return cls(match["base"], int(match["id"]))

    @classmethod
    def savepoint(cls, uri: str, checkpoint_id: int = 0) -> CheckpointLocation:
        """The savepoint in a directory, which is named by itself or by its ``_metadata``.

        Raises:
            CheckpointError: it names no directory of a bucket or disk.
        """
        directory = re.sub(f"(/+{METADATA})?/*$", "", _absolute(uri))
        if not locate(directory).key.strip("/") or directory.endswith(":"):
            raise CheckpointError(f"{uri} names no directory", remedy="name <store>/<directory of the savepoint>")
        return cls(directory, checkpoint_id, is_savepoint=True)

    @classmethod
    def named(cls, uri: str) -> CheckpointLocation:
        """The checkpoint that a name like ``<base>/chk-<n>`` stands for, else the savepoint of any other name."""
        return cls.parse(uri) if _DIRECTORY.fullmatch(_absolute(uri)) else cls.savepoint(uri)

    def __str__(self) -> str:
        return self.directory

    @property
    def directory(self) -> str:
        return self.base if self.is_savepoint else f"{self.base}/chk-{self.checkpoint_id}"

    @property
    def metadata(self) -> str:
        return f"{self.directory}/{METADATA}"

    @property
    def shared(self) -> str:
        return f"{self.base}/shared"

    @property
    def taskowned(self) -> str:
        return f"{self.base}/taskowned"

    def scope(self, name: str) -> str:
        """URI of the directory that a scope's relative paths start from.

        Raises:
            CheckpointError: there is no such scope.
        """
        if name == SHARED:
            return self.shared
        if name == EXCLUSIVE:
            return self.directory
        if name == TASKOWNED:
            return self.taskowned
        raise CheckpointError(f"{self}: unknown scope {name!r}", remedy=f"one of {', '.join(SCOPES)}")

    def resolve(self, handle: FileHandle | RelativeFileHandle | SegmentHandle) -> CopySource:
        """Where a handle's bytes are.

        Raises:
            CheckpointError: a path climbs out of its directory, or the scope is unknown.
        """
        if isinstance(handle, SegmentHandle):
            whole = self.resolve(handle.file)
            return CopySource(whole.uri, handle.offset, handle.size, whole.size)
        if isinstance(handle, RelativeFileHandle):
            refuse_climbing(handle.path, str(self))
            return CopySource(f"{self.scope(handle.scope)}/{handle.path}", 0, None, handle.size)
        refuse_climbing(handle.uri, str(self), relative=False)
        return CopySource(handle.uri, 0, None, handle.size)


def _absolute(uri: str) -> str:
    return os.path.abspath(uri) if locate(uri).is_local and "://" not in uri else uri


def refuse_climbing(path: str, name: str, *, relative: bool = True) -> None:
    """Refuse a path that could lead out of its directory on any file system.

    Args:
        name: of the checkpoint, for the message.
        relative: whether absolute paths and URIs are refused as well.

    Raises:
        CheckpointError: it could.
    """
    if _PLAIN.fullmatch(path):
        return
    segments = path.split("/")
    climbs = ".." in segments or "\\" in path or _CONTROL.search(path)
    if climbs or (relative and (not path or path[0] == "/" or "://" in path or "" in segments or "." in segments)):
        raise CheckpointError(
            f"{name}: the path {path!r} leads out of its directory",
            remedy="the metadata was tampered with or written by a broken program: use another checkpoint",
        )
