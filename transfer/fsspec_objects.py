"""Small objects on any other fsspec file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ..backends.errors import BackendError, BackendUnavailable, SourceNotFound, TransferError
from .stored_objects import StoredObject, first_of_many, require_length, taken


class FsspecObjects:
    def _at(self, uri: str) -> tuple[Any, str]:
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError) as error:
            raise BackendUnavailable(f"{uri}: {error}") from error
        return system, path

    def read(self, uri: str, at_most: int | None = None) -> bytes:
        with _foreign(uri):
            system, path = self._at(uri)
            if at_most is not None:
                require_length(uri, int(system.info(path)["size"] or 0), at_most)
            return bytes(system.cat_file(path))

    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None:
        with _foreign(uri):
            system, path = self._at(uri)
            if only_if_absent and system.exists(path):
                raise taken(uri)
            system.makedirs(os.path.dirname(path), exist_ok=True)
            system.pipe_file(path, data)

    def size(self, uri: str) -> int:
        with _foreign(uri):
            system, path = self._at(uri)
            return int(system.info(path)["size"])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with _foreign(prefix):
            system, path = self._at(prefix)
            start = path.rstrip("/") + "/" if prefix.endswith("/") else path
            for found, info in sorted(system.find(os.path.dirname(start), detail=True).items()):
                if found.startswith(start):
                    yield StoredObject(prefix + found[len(start) :], int(info["size"] or 0), _epoch(info))

    def delete(self, uris: Sequence[str]) -> None:
        with first_of_many() as trying:
            for uri in uris:
                with trying(), _foreign(uri), contextlib.suppress(FileNotFoundError):
                    system, path = self._at(uri)
                    system.rm_file(path)


def _epoch(info: dict[str, Any]) -> float:
    for name in ("mtime", "created", "LastModified", "last_modified"):
        value = info.get(name)
        if value is not None:
            return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return 0.0


@contextlib.contextmanager
def _foreign(uri: str) -> Iterator[None]:
    try:
        yield
    except TransferError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFound(f"no such file: {uri}") from error
    except Exception as error:
        raise BackendError(f"{uri}: {type(error).__name__}: {error}") from error
