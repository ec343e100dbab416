"""Files of any fsspec file system as streams: the way for every scheme that has no way of its own.

Their calls block, so a copy is ended between two chunks, not within one.
"""

from __future__ import annotations

import posixpath
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

from .errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    ConnectionFailed,
    DestinationError,
    IntegrityError,
    SourceChanged,
    SourceNotFound,
    StalledTransfer,
    TransferError,
    UnsupportedCopy,
)
from .landing import STAGING_PREFIX
from .request import CopyRequest, locate

#: What tells two versions of a file apart, under the names that fsspec's implementations use.
_IDENTITY = (
    "size",
    "etag",
    "ETag",
    "mtime",
    "modified",
    "created",
    "updated",
    "LastModified",
    "last_modified",
    "generation",
    "md5Hash",
)


def is_known(scheme: str) -> bool:
    """Whether fsspec has a file system for this scheme, installed or not."""
    from fsspec.registry import known_implementations, registry

    return scheme in registry or scheme in known_implementations


class Mounts:
    """fsspec's file systems by scheme and authority, for one process.

    fsspec's own instance cache hands a parent's instances to a forked child, where they fail
    ("not fork-safe"); and they keep listings that grow stale.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mounted: dict[str, Any] = {}

    def open(self, uri: str, request: CopyRequest) -> tuple[Any, str]:
        """The file system of a URI, and the file's path in it.

        Raises:
            BackendUnavailable: the package of this scheme is not installed.
        """
        location = locate(uri)
        with self._lock, _asking(uri, request):
            if location.authority not in self._mounted:
                self._mounted[location.authority] = _mount(location.scheme, uri)
            mounted = self._mounted[location.authority]
            return mounted, str(mounted._strip_protocol(uri))

    def close(self) -> None:
        with self._lock:
            self._mounted = {}


def _mount(scheme: str, uri: str) -> Any:
    from fsspec.registry import get_filesystem_class

    if not is_known(scheme):
        raise UnsupportedCopy(f"no file system is known for {uri}", backend="stream")
    try:
        made = get_filesystem_class(scheme)
    except ImportError as error:
        raise BackendUnavailable(f"{scheme}:// cannot be used: {error}", backend="stream") from error
    return made(**made._get_kwargs_from_urls(uri), skip_instance_cache=True, use_listings_cache=False)


@contextmanager
def _asking(uri: str, request: CopyRequest) -> Iterator[None]:
    """Turn what a file system of any kind may raise into errors of the tree."""
    try:
        yield
    except TransferError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        if _is_of_aiohttp(error.__cause__):
            # fsspec's http tells every failure to ask like this.
            raise _other_error(error.__cause__, uri, request) from error
        raise SourceNotFound(f"no such file: {uri}", request=request) from error
    except PermissionError as error:
        raise AccessDenied(f"{uri}: {error}", request=request) from error
    except TimeoutError as error:
        raise StalledTransfer(f"{uri}: {error or type(error).__name__}", request=request) from error
    except NotImplementedError as error:
        raise UnsupportedCopy(f"{uri}: not supported by its file system", request=request) from error
    except Exception as error:
        raise _other_error(error, uri, request) from error


def _is_of_aiohttp(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether a request failed otherwise than because the server refused it."""
    of_aiohttp = isinstance(error, Exception) and type(error).__module__.partition(".")[0] == "aiohttp"
    return of_aiohttp and not 400 <= getattr(error, "status", 0) < 500


def _other_error(error: Exception, uri: str, request: CopyRequest) -> TransferError:
    lines = str(error).strip().splitlines()
    # pyarrow's HDFS tells each of a hundred places where it looked for a library.
    text = f"{uri}: {type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    if isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] == "aiohttp":
        return ConnectionFailed(text, request=request)
    return BackendError(text, request=request)


def _identity(info: dict[str, Any]) -> dict[str, str]:
    return {name: str(info[name]) for name in _IDENTITY if info.get(name) is not None}


class FsspecSource:
    """The bytes of one file, read in order through its file system's file object."""

    crc64nvme: int | None = None
    crc32c: int | None = None

    def __init__(self, mounts: Mounts, request: CopyRequest, *, chunk_size: int) -> None:
        self._request = request
        self._chunk_size = chunk_size
        self._file_system, self._path = mounts.open(request.source, request)
        with _asking(request.source, request):
            self._info = self._file_system.info(self._path)
            if self._info.get("type") == "directory":
                raise SourceNotFound(f"{request.source} is a directory", request=request)
            self.size = self._length(self._info.get("size"))
            self._file = self._file_system.open(self._path, "rb", block_size=chunk_size)
            if request.offset:
                self._file.seek(request.offset)

    def _length(self, total: int | None) -> int | None:
        request = self._request
        if total is None:
            return request.length
        if request.size is not None and request.size != total:
            raise IntegrityError(f"{request.source} has {total} bytes instead of {request.size}", request=request)
        end = total if request.length is None else request.offset + request.length
        if not request.offset <= end <= total:
            raise IntegrityError(f"{request.source} has {total} bytes: too few for this range", request=request)
        return end - request.offset

    async def chunks(self) -> AsyncIterator[bytes]:
        left = self.size
        while left is None or left > 0:
            with _asking(self._request.source, self._request):
                chunk = self._file.read(self._chunk_size if left is None else min(left, self._chunk_size))
            if not chunk:
                return
            left = None if left is None else left - len(chunk)
            yield chunk

    async def check_unchanged(self, *, proven: bool) -> None:
        if proven:
            return
        with _asking(self._request.source, self._request):
            now = self._file_system.info(self._path)
        if _identity(now) != _identity(self._info):
            message = f"{self._request.source} was overwritten while it was read"
            raise SourceChanged(message, request=self._request)

    async def close(self) -> None:
        with suppress(Exception):
            self._file.close()


class FsspecSink:
    """A file written under a hidden name beside its destination, then moved.

    Not to be swept after a crash: nobody can tell whether another process still writes such a file.
    """

    def __init__(self, mounts: Mounts, request: CopyRequest, *, chunk_size: int) -> None:
        self._request = request
        self._file_system, self._path = mounts.open(request.destination, request)
        parent, name = posixpath.split(self._path)
        self._staged = posixpath.join(parent, f"{STAGING_PREFIX}{secrets.token_hex(6)}-{name}")
        with self._writing():
            with suppress(NotImplementedError, FileExistsError):
                self._file_system.makedirs(parent, exist_ok=True)
            self._file = self._file_system.open(self._staged, "wb", block_size=chunk_size)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        uri = self._request.destination
        try:
            with _asking(uri, self._request):
                yield
        except SourceNotFound as error:
            raise DestinationError(f"cannot write {uri}: {error.__cause__}", request=self._request) from error

    async def write(self, chunk: bytes) -> None:
        with self._writing():
            self._file.write(chunk)

    async def publish(self, size: int) -> None:
        with self._writing():
            self._file.close()
            found = self._file_system.info(self._staged).get("size")
            if found is not None and found != size:
                message = f"{self._request.destination} would have {found} bytes instead of {size}"
                raise IntegrityError(message, request=self._request)
            self._move()

    def _move(self) -> None:
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        # The base classes' mv expands glob characters, and copies the name's matches.
        if type(self._file_system).mv in (AbstractFileSystem.mv, AsyncFileSystem.mv):
            self._file_system.cp_file(self._staged, self._path)
            self._file_system.rm_file(self._staged)
        else:
            self._file_system.mv(self._staged, self._path)

    async def discard(self) -> None:
        with suppress(Exception):
            # Closing commits in some file systems, which is harmless under the hidden name.
            self._file.close()
        with suppress(Exception):
            self._file_system.rm_file(self._staged)
