"""From a store's answer to an error of the tree: one table for every S3 backend.

Codes are those of the AWS document "Error responses" (Amazon S3 API reference).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .checksums import from_text
from .errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    ConnectionFailed,
    CopyCancelled,
    IntegrityError,
    SourceChanged,
    SourceNotFound,
    StalledTransfer,
    Throttled,
    TransferError,
    UsageError,
)
from .request import CopyRequest

_NOT_FOUND = {"NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchVersion", "404"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_DENIED = {
    "AccessDenied",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "Forbidden",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "AccountProblem",
    "RequestTimeTooSkewed",
    "UnsupportedAlgorithm",  # rclone's word for a request without a signature
    "401",
    "403",
}
_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "429"}
_TRANSIENT = {"InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "500", "502", "503", "504"}
_CHANGED = {"PreconditionFailed", "412"}
_DAMAGED = {
    "BadDigest",
    "InvalidDigest",
    "InvalidRange",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "416",
}


def checksum_of(text: str | None, width: int) -> int | None:
    """A checksum of a whole object from an answer; None if it is of its parts (``…-3``) or none is given.

    Raises:
        IntegrityError: it is no checksum.
    """
    if not text or "-" in text:
        return None
    try:
        return from_text(text, width)
    except UsageError as error:
        raise IntegrityError(f"the store's answer has {error}") from error


def is_expired(code: str) -> bool:
    """Whether fresh credentials may help."""
    return code in _EXPIRED


def store_error(
    code: str,
    message: str,
    subject: str,
    *,
    status: int = 0,
    request: CopyRequest | None = None,
    backend: str | None = None,
) -> TransferError:
    """The error for an answer of the store.

    Args:
        code: S3's error code, or the HTTP status as text where the answer has no body.
        subject: URI of the object or bucket.
        status: HTTP status, used where the code says nothing.
    """
    where: dict[str, Any] = {"request": request, "backend": backend}
    for name in (code, str(status)):
        text = f"{subject}: {code or status}{': ' + message if message else ''}"
        if name == "NoSuchBucket":
            return SourceNotFound(
                f"no such bucket: {subject}", remedy="check the bucket's name and s3.endpoint", **where
            )
        if name in _NOT_FOUND:
            return SourceNotFound(f"no such object: {subject}", **where)
        if name in _EXPIRED:
            return AccessDenied(text, remedy="the credentials have expired: renew them", **where)
        # A HEAD's answer has no body; S3 gives 400 where it would tell of a wrong key, token or region.
        if name in _DENIED or code == "400":
            return AccessDenied(text, remedy="check s3.access-key, s3.secret-key and the bucket's policy", **where)
        if name in _THROTTLED:
            return Throttled(text, **where)
        if name in _CHANGED:
            return SourceChanged(f"{subject} was overwritten while it was read", **where)
        if name in _DAMAGED:
            return IntegrityError(text, **where)
        if name in _TRANSIENT:
            return BackendError(text, transient=True, **where)
    return BackendError(text, transient=status >= 500, **where)


@contextmanager
def translating(subject: str, request: CopyRequest | None = None, backend: str | None = None) -> Iterator[None]:
    """Turn botocore's, boto3's, s3transfer's and the network's exceptions of this block into errors of the tree.

    An ``OSError`` of a local file passes as it is: only its caller knows which file. Some of
    botocore's exceptions are ``OSError`` too (those that derive from its vendored requests).
    """
    try:
        yield
    except (TransferError, CopyCancelled):
        raise
    except Exception as error:
        if isinstance(error, OSError) and not _is_of_the_network(error):
            raise
        raise _from_botocore(error, subject, request, backend) from error


def _is_of_the_network(error: OSError) -> bool:
    from botocore.exceptions import BotoCoreError, HTTPClientError

    known = (BotoCoreError, HTTPClientError, ConnectionError, TimeoutError, ssl.SSLError, socket.gaierror)
    return isinstance(error, known)


def _from_botocore(error: Exception, subject: str, request: CopyRequest | None, backend: str | None) -> TransferError:
    from botocore import exceptions as botocore
    from s3transfer import exceptions as s3transfer

    where: dict[str, Any] = {"request": request, "backend": backend}
    match error:
        case botocore.ClientError():
            return _from_answer(error.response, subject, where)
        case botocore.NoCredentialsError() | botocore.PartialCredentialsError():
            return AccessDenied(
                f"{subject}: no credentials found",
                remedy="set s3.access-key and s3.secret-key, or AWS's own environment, or s3.anonymous",
                **where,
            )
        case botocore.ProfileNotFound():
            remedy = "check s3.profile, AWS_PROFILE and the AWS configuration files"
            return AccessDenied(f"{subject}: {error}", remedy=remedy, **where)
        case botocore.CredentialRetrievalError() | botocore.TokenRetrievalError():
            return AccessDenied(f"{subject}: {error}", **where)
        case botocore.FlexibleChecksumError():
            return IntegrityError(f"{subject}: {error}", **where)
        case botocore.MissingDependencyException():
            return BackendUnavailable(f"{subject}: {error}", remedy="pip install 'statelift[crt]'", **where)
        case s3transfer.S3DownloadFailedError() if "ETag" in str(error):
            return store_error("PreconditionFailed", "", subject, **where)
        case s3transfer.S3ValidationError():
            return IntegrityError(f"{subject}: {error}", **where)
    return _from_network(error, subject, where) or BackendError(f"{subject}: {type(error).__name__}: {error}", **where)


def _from_answer(response: Mapping[str, Any], subject: str, where: dict[str, Any]) -> TransferError:
    details: dict[str, Any] = dict(response.get("Error", {}))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return store_error(str(details.get("Code", "")), str(details.get("Message", "")), subject, status=status, **where)


def _from_network(error: Exception, subject: str, where: dict[str, Any]) -> TransferError | None:
    from botocore import exceptions as botocore
    from s3transfer import exceptions as s3transfer
    from urllib3 import exceptions as urllib3

    match error:
        case s3transfer.RetriesExceededError() if isinstance(error.last_exception, Exception):
            return _from_botocore(error.last_exception, subject, **where)
        case botocore.SSLError() | ssl.SSLError() | urllib3.SSLError():
            return ConnectionFailed(f"{subject}: {error}", remedy="check s3.endpoint and s3.ca-bundle", **where)
        case botocore.ReadTimeoutError() | botocore.ConnectTimeoutError() | urllib3.TimeoutError() | TimeoutError():
            return StalledTransfer(f"{subject}: {error}", **where)
        case (
            botocore.HTTPClientError()
            | botocore.ConnectionError()
            | botocore.IncompleteReadError()
            | urllib3.HTTPError()
            | ConnectionError()
            | socket.gaierror()
        ):
            return ConnectionFailed(f"{subject}: {error}", remedy="check s3.endpoint", **where)
    return None
