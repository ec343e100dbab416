"""Small objects on a local disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from ..backends.landing import STAGING_PREFIX, StagingArea, reading, writing
from ..backends.request import locate
from .stored_objects import StoredObject, first_of_many, require_length, taken


class LocalObjects:
    def __init__(self, *, fsync: bool) -> None:
        self._fsync = fsync

    def read(self, uri: str, at_most: int | None = None) -> bytes:
        with reading(uri), open(locate(uri).key, "rb") as file:
            require_length(uri, os.fstat(file.fileno()).st_size, at_most)
            return file.read()

    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None:
        path = os.path.abspath(locate(uri).key)
        with StagingArea(fsync=self._fsync) as staging:
            landing = staging.land(path)
            with writing(path):
                view = memoryview(data)
                while view:
                    view = view[os.write(landing.fd, view) :]
                if self._fsync:
                    os.fsync(landing.fd)
            if only_if_absent:
                _link(landing.path, path, uri)
            landing.publish(len(data))

    def size(self, uri: str) -> int:
        with reading(uri):
            return os.stat(locate(uri).key).st_size

    def list(self, prefix: str) -> Iterator[StoredObject]:
        path = locate(prefix).key
        root = prefix[: len(prefix) - len(path)]
        for directory, below, names in os.walk(os.path.dirname(path) or "."):
            below[:] = sorted(each for each in below if _leads_to(os.path.join(directory, each), path))
            for name in sorted(names):
                full = os.path.join(directory, name)
                if full.startswith(path) and os.path.lexists(full):
                    with reading(full):
                        found = os.stat(full)
                    yield StoredObject(root + full, found.st_size, max(found.st_mtime, found.st_ctime))

    def delete(self, uris: Sequence[str]) -> None:
        with first_of_many() as trying:
            for uri in uris:
                with trying(), writing(uri), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(locate(uri).key)


def _link(staged: str, path: str, uri: str) -> None:
    """Claim the name: a link, unlike a rename, never replaces what another writer put there."""
    try:
        os.link(staged, path)
    except FileExistsError as error:
        raise taken(uri) from error
    except OSError:
        # A file system without links: then only the check that came before.
        if os.path.lexists(path):
            raise taken(uri) from None


def _leads_to(directory: str, prefix: str) -> bool:
    """Whether a walk must enter a directory to find names that start with a prefix."""
    if os.path.basename(directory).startswith(STAGING_PREFIX):
        return False
    return directory.startswith(prefix) or prefix.startswith(directory + os.sep)
