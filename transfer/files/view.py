"""The database's view of its files as an fsspec file system on logical paths."""

from __future__ import annotations

from typing import Any

from fsspec import AbstractFileSystem

from ...backends.errors import SourceNotFound
from ..handles import SegmentHandle
from .manager import FileManager
from .mapping import normal
from .segment import SegmentFile


class LogicalFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """``open``, ``ls``, ``exists``, ``rm``, ``mv`` and their kin; nothing is cached.

    Directories exist as far as files lie in them.
    """

    protocol = "statelift-files"
    cachable = False

    def __init__(self, manager: FileManager, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.manager = manager

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path)
        return normal(stripped) if stripped.strip("/") else "/"

    def _entry(self, path: str) -> dict[str, Any]:
        file = self.manager.mapping.get(path)
        size = file.handle.size if file.handle is not None else self.manager.filesystem.size(file.path)
        return {"name": path, "size": size, "type": "file", "ownership": file.ownership.name}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path in self.manager.mapping:
            return self._entry(path)
        if path == "/" or self.manager.exists(path):
            return {"name": path, "size": 0, "type": "directory"}
        raise SourceNotFound(f"the database has no file {path}")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if path in self.manager.mapping:
            return [self._entry(path)] if detail else [path]
        children = self._children(path)
        if not children and path != "/":
            raise SourceNotFound(f"the database has no directory {path}")
        return [self.info(child) for child in children] if detail else children

    def _children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = self.manager.mapping.paths("" if path == "/" else path)
        return sorted({prefix + each[len(prefix) :].split("/", 1)[0] for each in below})

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "r" not in mode:
            file = self.manager.create(path, overwrite="x" not in mode)
            return self.manager.filesystem.open(file.path, "wb", **kwargs)
        file = self.manager.mapping.get(path)
        raw = self.manager.filesystem.open(file.path, "rb", **kwargs)
        if isinstance(file.handle, SegmentHandle):
            return SegmentFile(raw, file.handle.offset, file.handle.size)
        return raw

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self.manager.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """A link: physical files that may be shared never change."""
        self.manager.link(self._strip_protocol(path1), self._strip_protocol(path2))

    def rm_file(self, path: str) -> None:
        self.manager.delete(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: ARG002
        for each in [path] if isinstance(path, str) else path:
            self.manager.delete(self._strip_protocol(each), recursive=recursive)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Directories come with their files."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories come with their files."""
