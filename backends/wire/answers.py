"""The few XML answers of S3 that the engine reads, and what an error answer means.

Element names are those of the AWS document "Amazon S3 API reference".
"""

from __future__ import annotations

import re
import time
from html import unescape
from urllib.parse import quote

from ..errors import BackendError, TransferError
from ..s3_errors import store_error
from .response import Head

_ELEMENT = re.compile(r"<(\w+)(?: [^<>]*)?>([^<>]*)</\1>")
BODY_LIMIT = 1 << 20


def elements(body: bytes) -> dict[str, str]:
    """Text of the first element of each name that has no elements in it.

    A regular expression on purpose: these documents are flat, and an XML parser is a larger target.
    """
    found: dict[str, str] = {}
    for name, text in _ELEMENT.findall(body[:BODY_LIMIT].decode("utf-8", "replace")):
        found.setdefault(name, unescape(text))
    return found


def is_error(body: bytes) -> bool:
    """Whether a 200 answer carries an error: copies and completed uploads answer before they are done."""
    return re.match(rb"\s*(<\?xml[^>]*>)?\s*<Error[\s>]", body) is not None


def error_of(head: Head, body: bytes, subject: str) -> TransferError:
    """The error that an answer stands for."""
    found = elements(body)
    code, message = found.get("Code", ""), found.get("Message", "")
    if not code and head.status == 408:
        code = "RequestTimeout"
    if not code and 300 <= head.status < 400:
        where = head.headers.get("location", "another place")[:200]
        return BackendError(f"{subject}: redirected ({head.status}) to {where}", remedy="check s3.endpoint, s3.region")
    return store_error(code or str(head.status), message or ("" if code else head.reason), subject, status=head.status)


def code_of(head: Head, body: bytes) -> str:
    return elements(body).get("Code", str(head.status))


def region_of(head: Head, body: bytes) -> str | None:
    """The region that an answer says the bucket is in."""
    return head.headers.get("x-amz-bucket-region") or elements(body).get("Region")


def retry_after(head: Head) -> float | None:
    """Seconds of ``Retry-After``: a number or an HTTP date (RFC 9110, 10.2.3)."""
    text = head.headers.get("retry-after")
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    import email.utils

    parsed = email.utils.parsedate_tz(text)
    return max(0.0, email.utils.mktime_tz(parsed) - time.time()) if parsed else None


def complete_document(parts: list[tuple[str, str | None]]) -> bytes:
    """Body of CompleteMultipartUpload: (ETag, base64 CRC64NVME) of the parts in order."""
    rows = []
    for number, (etag, checksum) in enumerate(parts, 1):
        extra = f"<ChecksumCRC64NVME>{checksum}</ChecksumCRC64NVME>" if checksum else ""
        rows.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{_escape(etag)}</ETag>{extra}</Part>")
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{"".join(rows)}</CompleteMultipartUpload>'.encode()


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def copy_source(bucket: str, key: str) -> str:
    """Value of ``x-amz-copy-source``."""
    return f"/{quote(bucket, safe='')}/{quote(key, safe='/-_.~', errors='surrogateescape')}"
