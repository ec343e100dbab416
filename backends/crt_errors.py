"""From the Common Runtime's errors to errors of the tree. The names are those of its C libraries."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from .disk import destination_error
from .errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    IntegrityError,
    SourceChanged,
    StalledTransfer,
    Throttled,
    TransferError,
    UnsupportedCopy,
)
from .request import CopyRequest
from .s3_errors import translating

_TOO_MANY_REQUESTS = 429
_STALLED = ("THROUGHPUT_FAILURE", "TIMEOUT", "TIMED_OUT")
_CONNECTION = ("AWS_IO_SOCKET", "AWS_IO_TLS", "AWS_IO_DNS", "AWS_IO_", "AWS_ERROR_HTTP_", "AWS_ERROR_S3_PROXY")
_DISK = {
    "AWS_ERROR_NO_PERMISSION": errno.EACCES,
    "AWS_ERROR_DISK_FULL": errno.ENOSPC,
    "AWS_ERROR_NO_SPACE": errno.ENOSPC,
    "AWS_ERROR_FILE_WRITE_FAILURE": errno.EIO,
    "AWS_ERROR_FILE_OPEN_FAILURE": errno.EIO,
    "AWS_ERROR_SYS_CALL_FAILURE": errno.EIO,
}


@contextmanager
def translating_crt(uri: str, local: str, request: CopyRequest) -> Iterator[None]:
    """Turn what the CRT and botocore raise in this block into errors of the tree.

    Args:
        uri: of the object.
        local: path of the file.
    """
    from awscrt.exceptions import AwsCrtError

    try:
        with translating(uri, request):
            try:
                yield
            except AwsCrtError as error:
                raise _translated(error, uri, local, request) from error
    except TransferError as error:
        # The CRT has tried again itself, but for a silent server and for 429.
        error.transient = isinstance(error, StalledTransfer) or _status(error.__cause__) == _TOO_MANY_REQUESTS
        raise


def _status(error: BaseException | None) -> int | None:
    response = getattr(error, "response", {})
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _translated(error: object, uri: str, local: str, request: CopyRequest) -> TransferError:
    name, text = str(getattr(error, "name", "")), f"{uri}: {error}"
    if any(word in name for word in _STALLED):
        return StalledTransfer(text, request=request)
    if name in _DISK:
        return destination_error(OSError(_DISK[name], f"{error}"), local, request)
    if "CHECKSUM_MISMATCH" in name:
        return IntegrityError(text, request=request)
    if name == "AWS_ERROR_S3_OBJECT_MODIFIED":
        return SourceChanged(f"{uri} was overwritten while it was read", request=request)
    if name == "AWS_ERROR_S3_SLOW_DOWN":
        return Throttled(text, request=request)
    if name == "AWS_ERROR_S3_MISSING_UPLOAD_ID":
        return UnsupportedCopy(
            f"{uri}: the CRT does not understand how this store begins a multipart upload", request=request
        )
    if name.startswith("AWS_AUTH_"):
        return AccessDenied(text, remedy="check s3.access-key and s3.secret-key", request=request)
    if name.startswith(_CONNECTION):
        remedy = "check s3.endpoint and s3.ca-bundle" if "TLS" in name else "check s3.endpoint"
        return ConnectionFailed(text, remedy=remedy, request=request)
    return BackendError(text, request=request)
