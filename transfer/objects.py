"""Small objects such as metadata, on S3, on a local disk, or on any fsspec file system."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from ..backends.errors import (
    BackendError,
    BackendUnavailable,
    DestinationError,
    SourceNotFound,
    StalledTransfer,
    TransferError,
)
from ..backends.landing import STAGING_PREFIX, StagingArea, reading, writing
from ..backends.options import Configuration
from ..backends.request import locate
from ..backends.s3_access import S3Access
from ..backends.s3_errors import store_error, translating
from ..backends.s3_options import S3Options
from ..backends.transfer_options import TransferOptions

_DELETED_AT_ONCE = 1000  # DeleteObjects takes no more (Amazon S3 API reference)
_DELETE_ATTEMPTS = 5
_TRANSIENT = {"InternalError", "SlowDown", "ServiceUnavailable", "OperationAborted", "RequestTimeout"}


class StoredObject(NamedTuple):
    """One object of a listing: its URI, bytes, and time of the last change in seconds since 1970."""

    uri: str
    size: int
    modified: float


class _Store(Protocol):
    def read(self, uri: str) -> bytes: ...
    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None: ...
    def size(self, uri: str) -> int: ...
    def list(self, prefix: str) -> Iterator[StoredObject]: ...
    def delete(self, uris: Sequence[str]) -> None: ...


class Objects:
    """Whole objects by URI.

    Every method raises errors of the tree that name the URI: `SourceNotFound`, `AccessDenied`,
    `ConnectionFailed` and so on.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._s3 = _S3Objects(configuration)
        self._local = _LocalObjects(fsync=configuration.of(TransferOptions).fsync)
        self._other = _OtherObjects()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _store(self, uri: str) -> _Store:
        location = locate(uri)
        if location.is_local:
            return self._local
        return self._s3 if location.scheme == "s3" else self._other

    def read(self, uri: str) -> bytes:
        return self._store(uri).read(uri)

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
        with _first_of_many() as trying:
            for store, group in groupby(uris, key=self._store):
                with trying():
                    store.delete(list(group))

    def close(self) -> None:
        """Release connections; the next call makes new ones."""
        self._s3.close()


@contextlib.contextmanager
def _first_of_many() -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
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


def _taken(uri: str) -> DestinationError:
    error = DestinationError(f"{uri} exists already")
    error.errno = errno.EEXIST
    return error


class _S3Objects:
    def __init__(self, configuration: Configuration) -> None:
        self._access = S3Access(configuration.of(S3Options), configuration.of(TransferOptions))
        self._encryption = _encryption(self._access.options)

    def _client(self) -> Any:
        return self._access.client()  # botocore makes its methods at run time

    def _at(self, uri: str) -> tuple[Any, dict[str, str]]:
        location = locate(uri)
        return self._client(), {"Bucket": location.bucket, "Key": location.key}

    def read(self, uri: str) -> bytes:
        with translating(uri):
            client, at = self._at(uri)
            return bytes(client.get_object(**at)["Body"].read())

    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None:
        with translating(uri):
            client, at = self._at(uri)
            if not only_if_absent:
                client.put_object(**at, Body=data, **self._encryption)
            elif self._present(uri) or not self._put_if_absent(uri, data):
                raise _taken(uri)

    def _present(self, uri: str) -> bool:
        # Also needed where If-None-Match is honoured: many stores ignore the header.
        try:
            self.size(uri)
        except SourceNotFound:
            return False
        return True

    def _put_if_absent(self, uri: str, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        client, at = self._at(uri)
        try:
            client.put_object(**at, Body=data, IfNoneMatch="*", **self._encryption)
        except ClientError as error:
            match str(error.response.get("Error", {}).get("Code")):
                case "NotImplemented" | "501":
                    client.put_object(**at, Body=data, **self._encryption)
                case "PreconditionFailed" | "412" | "ConditionalRequestConflict" | "409":
                    # Our own first attempt may have been stored and only its answer lost.
                    return self.read(uri) == data
                case _:
                    raise
        return True

    def size(self, uri: str) -> int:
        with translating(uri):
            client, at = self._at(uri)
            return int(client.head_object(**at)["ContentLength"])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        location = locate(prefix)
        root = prefix[: len(prefix) - len(location.key)] if location.key else prefix.rstrip("/") + "/"
        with translating(prefix):
            pages = self._client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=location.bucket, Prefix=location.key):
                for each in page.get("Contents", ()):
                    yield StoredObject(root + each["Key"], int(each["Size"]), each["LastModified"].timestamp())

    def delete(self, uris: Sequence[str]) -> None:
        with _first_of_many() as trying:
            for bucket, group in groupby(sorted(map(locate, uris), key=str), key=lambda each: each.bucket):
                keys = [each.key for each in group]
                for start in range(0, len(keys), _DELETED_AT_ONCE):
                    with trying():
                        self._delete(bucket, keys[start : start + _DELETED_AT_ONCE])

    def _delete(self, bucket: str, keys: Sequence[str]) -> None:
        try:
            self._delete_with_retries(bucket, keys)
        except StalledTransfer:
            if len(keys) == 1:
                raise
            # A slow store answers only when all are gone: ask for fewer.
            half = len(keys) // 2
            self._delete(bucket, keys[:half])
            self._delete(bucket, keys[half:])

    def _delete_with_retries(self, bucket: str, keys: Sequence[str]) -> None:
        for attempt in range(_DELETE_ATTEMPTS):
            errors = self._delete_once(bucket, keys)
            if not errors:
                return
            worst = next((each for each in errors if each.get("Code") not in _TRANSIENT), None)
            if worst or attempt == _DELETE_ATTEMPTS - 1:
                raise _delete_error(bucket, worst or errors[0], len(errors))
            keys = [each["Key"] for each in errors]
            time.sleep(random.uniform(0.1, 0.3) * 2**attempt)

    def _delete_once(self, bucket: str, keys: Sequence[str]) -> Sequence[dict[str, str]]:
        with translating(f"s3://{bucket}"):
            names = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._client().delete_objects(Bucket=bucket, Delete=names)
        return [each for each in answer.get("Errors", ()) if each.get("Code") != "NoSuchKey"]

    def close(self) -> None:
        self._access.close()


def _delete_error(bucket: str, error: dict[str, Any], count: int) -> TransferError:
    message = f"cannot delete{f' ({count} objects)' if count > 1 else ''}: {error.get('Message', '')}"
    return store_error(str(error.get("Code", "")), message, f"s3://{bucket}/{error.get('Key', '')}")


def _encryption(options: S3Options) -> dict[str, str]:
    if options.sse_type == "none":
        return {}
    key = {"SSEKMSKeyId": options.sse_kms_key_id} if options.sse_kms_key_id else {}
    return {"ServerSideEncryption": options.sse_type, **key}


class _LocalObjects:
    def __init__(self, *, fsync: bool) -> None:
        self._fsync = fsync

    def read(self, uri: str) -> bytes:
        with reading(uri), open(locate(uri).key, "rb") as file:
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
                    yield StoredObject(root + full, found.st_size, found.st_mtime)

    def delete(self, uris: Sequence[str]) -> None:
        with _first_of_many() as trying:
            for uri in uris:
                with trying(), writing(uri), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(locate(uri).key)


def _link(staged: str, path: str, uri: str) -> None:
    """Claim the name: a link, unlike a rename, never replaces what another writer put there."""
    try:
        os.link(staged, path)
    except FileExistsError as error:
        raise _taken(uri) from error
    except OSError:
        # A file system without links: then only the check that came before.
        if os.path.lexists(path):
            raise _taken(uri) from None


def _leads_to(directory: str, prefix: str) -> bool:
    """Whether a walk must enter a directory to find names that start with a prefix."""
    if os.path.basename(directory).startswith(STAGING_PREFIX):
        return False
    return directory.startswith(prefix) or prefix.startswith(directory + os.sep)


class _OtherObjects:
    def _at(self, uri: str) -> tuple[Any, str]:
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(uri)
        except (ImportError, ValueError) as error:
            raise BackendUnavailable(f"{uri}: {error}") from error
        return system, path

    def read(self, uri: str) -> bytes:
        with _foreign(uri):
            system, path = self._at(uri)
            return bytes(system.cat_file(path))

    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None:
        with _foreign(uri):
            system, path = self._at(uri)
            if only_if_absent and system.exists(path):
                raise _taken(uri)
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
        with _first_of_many() as trying:
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
