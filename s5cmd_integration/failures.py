"""From the text of an s5cmd error to an error of the tree.

The texts are those of the AWS SDK for Go v1 (``Code: message status code: 404, request id: ...``,
nested by ``caused by:``), of Go's network packages, and of the operating system.
"""

from __future__ import annotations

import errno
import os
import re

from ..backends.errors import (
    AccessDenied,
    BackendError,
    ConnectionFailed,
    SourceNotFound,
    TransferError,
    UnsupportedCopy,
)
from ..backends.landing import destination_error
from ..backends.request import CopyRequest, locate
from ..backends.s3_errors import is_expired, store_error

_ANSWER = re.compile(r"(?:^|[\s:])(?P<code>[A-Z]\w*): (?P<message>.*?)\s*status code: (?P<status>\d{3})", re.DOTALL)
_DETAILS = re.compile(r",? *(?:status code: \d+|request id: \S*|host id: \S*)")
_BAD_CERTIFICATE = re.compile(r"x509|certificate|tls: ", re.IGNORECASE)
_NETWORK = re.compile(
    r"RequestError|EOF|connection re|connection closed|broken pipe|no such host|timeout|SerializationError"
    r"|malformed|transport|network is|no route to host|dial tcp|use of closed",
    re.IGNORECASE,
)
_NO_CREDENTIALS = re.compile(r"NoCredentialProviders|no valid providers in chain|SharedConfig|SharedCreds")
_REGION = re.compile(r"BucketRegionError.*bucket is in '(?P<region>[^']+)' region", re.DOTALL)
_CHECK_KEYS = "check s3.access-key, s3.secret-key and the bucket's policy"
#: What the operating system says, in Go's lower case, of a disk or a file.
_SAID = {
    os.strerror(number).lower(): number
    for number in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EIO,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ENOENT,
        errno.ENAMETOOLONG,
        errno.EFBIG,
    )
}


def code_of(text: str) -> tuple[str, int]:
    """S3's error code and the HTTP status in an error's text; ``("", 0)`` where the store said nothing."""
    found = _answer(text)
    return (found["code"], int(found["status"])) if found else ("", 0)


def says_expired(text: str) -> bool:
    """Whether fresh credentials may help."""
    return is_expired(code_of(text)[0])


def _answer(text: str) -> re.Match[str] | None:
    return _ANSWER.search(text.rpartition("caused by:")[2]) or _ANSWER.search(text)


def error_of(text: str, request: CopyRequest) -> TransferError:
    """The error that a failed request's text (already masked) stands for."""
    return _of_store(text, request) or _of_system(text, request) or _of_network(text, request)


def not_found_though_there(text: str, request: CopyRequest) -> UnsupportedCopy | None:
    """The error of a copy within a store whose source was seen just before, where s5cmd does not find it.

    So it is with moto's server and blanks at the ends of a name: how the source is written in a
    header is read differently from store to store.
    """
    if code_of(text)[0] != "NoSuchKey":
        return None
    return UnsupportedCopy(f"s5cmd does not find {request.source}, although it is there", request=request)


def _subject(request: CopyRequest) -> str:
    """The remote object that is spoken of: the one that is written, else the one that is read."""
    return request.source if locate(request.destination).is_local else request.destination


def _of_store(text: str, request: CopyRequest) -> TransferError | None:
    region = _REGION.search(text)
    if region:
        message = f"{_subject(request)}: the bucket is in region {region['region']}"
        return BackendError(message, remedy=f"set s3.region to {region['region']}", request=request)
    found = _answer(text)
    if found is None:
        return None
    message = " ".join(found["message"].split())
    return store_error(found["code"], message, _subject(request), status=int(found["status"]), request=request)


def _of_system(text: str, request: CopyRequest) -> TransferError | None:
    last = text.rpartition(": ")[2].strip().lower()
    number = _SAID.get(last)
    destination, source = locate(request.destination), locate(request.source)
    if number and destination.is_local:
        return destination_error(OSError(number, os.strerror(number)), destination.key, request)
    if source.is_local and (number == errno.ENOENT or re.search(r"given object .* not found", text, re.DOTALL)):
        return SourceNotFound(f"no such file: {source.key}", request=request)
    if number and source.is_local:
        return AccessDenied(f"cannot read {source.key}: {os.strerror(number)}", request=request)
    return None


def _of_network(text: str, request: CopyRequest) -> TransferError:
    message = f"{_subject(request)}: {_shortened(text)}"
    if _NO_CREDENTIALS.search(text):
        return AccessDenied(message, remedy=_CHECK_KEYS, request=request)
    if _BAD_CERTIFICATE.search(text):
        return ConnectionFailed(message, remedy="check s3.ca-bundle and s3.endpoint", request=request, transient=False)
    if _NETWORK.search(text):
        return ConnectionFailed(message, remedy="check s3.endpoint", request=request)
    return BackendError(message, request=request)


def _shortened(text: str) -> str:
    return " ".join(_DETAILS.sub("", text).split())[:500]
