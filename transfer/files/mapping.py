"""Logical database paths onto physical files, counted by reference.

Several logical paths may stand for one physical file (a link), and a link to a link is a link to
the file: chains never form. The semantics are those of Flink's ForSt file mapping, as the table in
the design notes lists them, without its leaks.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...backends.errors import DestinationError, SourceNotFound, UsageError
from ..handles import FileHandle, RelativeFileHandle, SegmentHandle
from .ownership import Ownership

FileLike = FileHandle | RelativeFileHandle | SegmentHandle


@dataclass(eq=False)
class PhysicalFile:
    """One physical file and the number of logical paths that stand for it.

    Args:
        path: where its bytes are, as the file system below understands it.
        handle: the state handle it was restored from or handed over under; None while the
            database owns it.
    """

    path: str
    ownership: Ownership
    handle: FileLike | None = None
    references: int = field(default=0)

    @property
    def source(self) -> tuple[str, int | None]:
        """Identity of its bytes: the path, and the offset of a segment."""
        return self.path, self.handle.offset if isinstance(self.handle, SegmentHandle) else None

    def hand_over(self, handle: FileLike) -> None:
        """Make the coordinator its owner. Doing so again with the same handle changes nothing.

        Raises:
            UsageError: it is private, or already known under another handle.
        """
        if self.ownership is Ownership.PRIVATE:
            raise UsageError(f"{self.path} is {Ownership.PRIVATE.value} and cannot be handed over")
        if self.handle is not None and self.handle != handle:
            raise UsageError(f"{self.path} was already handed over under another handle")
        self.handle = handle
        self.ownership = Ownership.NOT_OWNED


class FileMapping:
    """The map. Paths are POSIX paths of the database's own world; nothing here touches a disk."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._files: dict[str, PhysicalFile] = {}
        self._by_source: dict[tuple[str, int | None], PhysicalFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: object) -> bool:
        return path in self._files

    def get(self, path: str) -> PhysicalFile:
        """The physical file behind a logical path.

        Raises:
            SourceNotFound: no such logical path.
        """
        with self._lock:
            found = self._files.get(normal(path))
        if found is None:
            raise SourceNotFound(f"the database has no file {path}")
        return found

    def paths(self, below: str = "") -> list[str]:
        """Logical paths, sorted; only those below a directory if one is given."""
        prefix = normal(below).rstrip("/") + "/" if below else ""
        with self._lock:
            return sorted(path for path in self._files if path.startswith(prefix))

    def files(self) -> Iterator[PhysicalFile]:
        """Every physical file once."""
        with self._lock:
            seen = {id(file): file for file in self._files.values()}
        yield from seen.values()

    def add(self, path: str, file: PhysicalFile, *, overwrite: bool = False) -> PhysicalFile | None:
        """Let ``path`` stand for ``file``. Returns a file that lost its last path by that.

        A file of the same source that is known already is used in its place: one source, one count.

        Raises:
            DestinationError: the path stands for another file and ``overwrite`` is not set.
        """
        path = normal(path)
        with self._lock:
            old = self._files.get(path)
            file = self._by_source.setdefault(file.source, file)
            if old is not None:
                if old is file:
                    return None
                if not overwrite:
                    raise DestinationError(f"{path} exists already and stands for another file")
            file.references += 1
            self._files[path] = file
            return self._dropped(old)

    def link(self, source: str, target: str) -> int:
        """Let ``target`` stand for the file behind ``source`` too.

        Returns:
            the file's number of paths, or -1 if the two are the same or ``target`` exists.

        Raises:
            SourceNotFound: no such source.
        """
        source, target = normal(source), normal(target)
        with self._lock:
            file = self.get(source)
            if source == target or target in self._files:
                return -1
            self._files[target] = file
            file.references += 1
            return file.references

    def rename(self, source: str, target: str) -> list[PhysicalFile]:
        """Re-key a file, or every file below a directory; no physical file moves.

        Returns:
            physical files that lost their last path because their path was taken over.

        Raises:
            SourceNotFound: neither a file nor a directory with files.
            UsageError: a directory would move into itself.
        """
        source, target = normal(source), normal(target)
        if source == target:
            return []
        with self._lock:
            moves = self._moves(source, target)
            if not moves:
                raise SourceNotFound(f"the database has no file {source}")
            if target.startswith(source + "/"):
                raise UsageError(f"cannot move {source} into itself")
            dropped = []
            for old, new in moves:
                file = self._files.pop(old)
                replaced = self._dropped(self._files.get(new))
                self._files[new] = file
                if replaced is not None:
                    dropped.append(replaced)
            return dropped

    def _moves(self, source: str, target: str) -> list[tuple[str, str]]:
        if source in self._files:
            return [(source, target)]
        return [(path, target + path[len(source) :]) for path in self.paths(source)]

    def remove(self, path: str) -> PhysicalFile | None:
        """Forget a logical path. Returns the physical file if that was its last one.

        Raises:
            SourceNotFound: no such logical path.
        """
        path = normal(path)
        with self._lock:
            file = self.get(path)
            del self._files[path]
            return self._dropped(file)

    def _dropped(self, file: PhysicalFile | None) -> PhysicalFile | None:
        if file is None:
            return None
        file.references -= 1
        if file.references:
            return None
        self._by_source.pop(file.source, None)
        return file


def normal(path: str) -> str:
    """One spelling for each logical path: ``/db/./a//b`` is ``/db/a/b``.

    Raises:
        UsageError: it is empty or climbs above its root.
    """
    clean = posixpath.normpath("/" + path.lstrip("/"))
    if clean == "/" or ".." in path.split("/"):
        raise UsageError(f"not a path of the database: {path!r}")
    return clean
