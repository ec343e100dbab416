"""Small objects such as metadata, on S3, on a local disk, or on any fsspec file system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from types import TracebackType
from typing import Self

from ..backends.errors import SourceNotFound
from ..backends.options import Configuration
from ..backends.request import locate
from ..backends.transfer_options import TransferOptions
from .fsspec_objects import FsspecObjects
from .local_objects import LocalObjects
from .s3_objects import S3Objects
from .stored_objects import ObjectStore, StoredObject, first_of_many

__all__ = ["Objects", "StoredObject"]


class Objects:
    """Whole objects by URI.

    Every method raises errors of the tree that name the URI: `SourceNotFound`, `AccessDenied`,
    `ConnectionFailed` and so on.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._s3 = S3Objects(configuration)
        self._local = LocalObjects(fsync=configuration.of(TransferOptions).fsync)
        self._other = FsspecObjects()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _store(self, uri: str) -> ObjectStore:
        location = locate(uri)
        if location.is_local:
            return self._local
        return self._s3 if location.scheme == "s3" else self._other

    def read(self, uri: str, *, at_most: int | None = None) -> bytes:
        """A whole object.

        Args:
            at_most: bytes; a longer one is refused before it is read.

        Raises:
            IntegrityError: it is longer.
        """
        return self._store(uri).read(uri, at_most)

    def write(self, uri: str, data: bytes, *, only_if_absent: bool = False) -> None:
        """Write or replace an object as a whole.

        Raises:
            DestinationError: with ``only_if_absent``, another object is there already.
        """
        self._store(uri).write(uri, data, only_if_absent=only_if_absent)

    def size(self, uri: str) -> int:
        return self._store(uri).size(uri)

    def exists(self, uri: str) -> bool:
        try:
            self.size(uri)
        except SourceNotFound:
            return False
        return True

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose URI starts with ``prefix``, at any depth. Nothing there is no error."""
        return self._store(prefix).list(prefix)

    def delete(self, uris: Iterable[str]) -> None:
        """Delete objects, in batches where the store can. One that does not exist is no error.

        All are tried; the first failure is raised after that.
        """
        with first_of_many() as trying:
            for store, group in groupby(uris, key=self._store):
                with trying():
                    store.delete(list(group))

    def close(self) -> None:
        """Release connections; the next call makes new ones."""
        self._s3.close()
