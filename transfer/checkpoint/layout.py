"""Where the files of a checkpoint lie.

``<base>/chk-<n>/`` holds what belongs to checkpoint ``n`` alone, with ``_metadata`` as its last
file; ``<base>/shared/`` what several checkpoints may use; ``<base>/taskowned/`` what the
checkpoints use and never delete. Paths are kept relative to their directory, so that a whole
base can be moved or copied elsewhere.
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
    """One checkpoint below a base, which is a URI or an absolute local path without a slash at its end."""

    base: str
    checkpoint_id: int

    @classmethod
    def parse(cls, uri: str) -> CheckpointLocation:
        """The location named by ``<base>/chk-<n>`` or ``<base>/chk-<n>/_metadata``.

        Raises:
            CheckpointError: it names no checkpoint.
        """
        absolute = os.path.abspath(uri) if locate(uri).is_local and "://" not in uri else uri
        match = _DIRECTORY.fullmatch(absolute)
        if match is None or match["base"].endswith(":"):
            raise CheckpointError(f"{uri} is not a checkpoint's directory", remedy="name <base>/chk-<number>")
        return cls(match["base"], int(match["id"]))

    def __str__(self) -> str:
        return self.directory

    @property
    def directory(self) -> str:
        return f"{self.base}/chk-{self.checkpoint_id}"

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
