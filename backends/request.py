"""What to copy: a source, a destination, and what is already known of the bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .errors import UsageError

_S3_ALIASES = {"s3a": "s3", "s3n": "s3"}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)  # scheme: RFC 3986, 3.1


@dataclass(frozen=True, slots=True)
class Location:
    """A URI in its parts; a local path has scheme ``file``, no bucket, and its path as key.

    Nothing is percent-decoded: S3 keys and file names are taken literally.
    """

    scheme: str
    bucket: str
    key: str

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def authority(self) -> str:
        """What one file system client serves: scheme and bucket (Flink's grouping key)."""
        return f"{self.scheme}://{self.bucket}"


@lru_cache(maxsize=1024)  # one request's two URIs are looked at half a dozen times
def locate(uri: str) -> Location:
    """Parse ``s3://bucket/key`` (also ``s3a``, ``s3n``), ``file:///path``, a plain path, or any scheme.

    A plain path is local even when ``://`` stands further inside it.
    """
    match = None if uri.startswith("/") else _URI.fullmatch(uri)
    if match is None:
        return Location("file", "", uri)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return Location("file", "", rest if rest.startswith("/") else "/" + rest.partition("/")[2])
    bucket, _, key = rest.partition("/")
    return Location(_S3_ALIASES.get(scheme, scheme), bucket, key)


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """One file to copy.

    Args:
        source: URI or local path.
        destination: URI or local path; replaced if it exists.
        size: bytes of the whole source, where known. Saves a request to ask, and is checked.
        offset: first byte to copy.
        length: bytes to copy from ``offset``; None means to the end.
        crc64nvme: CRC64NVME of the copied bytes as an unsigned integer, checked at the destination.
        crc32c: CRC32C of the copied bytes, likewise.
        etag: version that the source must have, as the store's ETag.

    Raises:
        UsageError: a negative number, a range that ends outside ``size``, or an S3 URI without a key.
    """

    source: str
    destination: str
    size: int | None = None
    offset: int = 0
    length: int | None = None
    crc64nvme: int | None = None
    crc32c: int | None = None
    etag: str | None = None

    def __post_init__(self) -> None:
        if not self.source or not self.destination:
            raise UsageError("a copy request needs a source and a destination", request=self)
        for uri in (self.source, self.destination):
            location = locate(uri)
            if location.scheme == "s3" and not (location.bucket and location.key):
                raise UsageError(f"{uri} names no object", remedy="s3://bucket/key", request=self)
        if self.offset < 0 or (self.length or 0) < 0 or (self.size or 0) < 0:
            raise UsageError(f"negative size, offset or length for {self.source}", request=self)
        if self.size is not None and self.offset + (self.length or 0) > self.size:
            raise UsageError(
                f"range {self.offset}+{self.length or 0} of {self.source} ends beyond its {self.size} bytes",
                request=self,
            )

    @property
    def expected(self) -> int | None:
        """Bytes that the destination will have, where known."""
        if self.length is not None:
            return self.length
        return None if self.size is None else self.size - self.offset

    @property
    def is_range(self) -> bool:
        return self.offset > 0 or (self.length is not None and self.length != self.size)

    @property
    def has_checksum(self) -> bool:
        return self.crc64nvme is not None or self.crc32c is not None
