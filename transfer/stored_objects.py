"""What every store of small objects shares."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..backends.errors import DestinationError, IntegrityError, TransferError


class StoredObject(NamedTuple):
    """One object of a listing: its URI, bytes, and time of the last change in seconds since 1970.

    On a disk a change of its names counts: a file that is linked into a checkpoint is as new there as a copy.
    """

    uri: str
    size: int
    modified: float


class ObjectStore(Protocol):
    """Whole objects by URI on one kind of store; see `Objects`."""

    def read(self, uri: str, at_most: int | None = None) -> bytes: ...
    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None: ...
    def size(self, uri: str) -> int: ...
    def list(self, prefix: str) -> Iterator[StoredObject]: ...
    def delete(self, uris: Sequence[str]) -> None: ...


@contextlib.contextmanager
def first_of_many() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Give a block for each of several tries; raise the first one's error once all were made."""
    errors: list[TransferError] = []

    @contextlib.contextmanager
    def trying() -> Iterator[None]:
        try:
            yield
        except TransferError as error:
            errors.append(error)

    yield trying
    if errors:
        raise errors[0]


def require_length(uri: str, size: int, at_most: int | None) -> None:
    """
    Raises:
        IntegrityError: an object has more bytes than whoever reads it takes.
    """
    if at_most is not None and size > at_most:
        raise IntegrityError(f"{uri} has {size} bytes, more than {at_most}: it is not what its name says")


def taken(uri: str) -> DestinationError:
    error = DestinationError(f"{uri} exists already")
    error.errno = errno.EEXIST
    return error
