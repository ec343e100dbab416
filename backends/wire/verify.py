"""Checksums of a copy: computed while the bytes are in the CPU's cache, joined, compared."""

from __future__ import annotations

from dataclasses import dataclass

from ..checksums import Buffer, crc32c, crc32c_joined, crc64nvme, crc64nvme_joined, from_text, to_base64
from ..errors import IntegrityError, UsageError
from ..request import CopyRequest
from .response import BadResponse, Head


@dataclass(slots=True)
class Sums:
    """Running checksums of adjacent bytes; a sum that is not wanted stays None."""

    crc64nvme: int | None = None
    crc32c: int | None = None
    length: int = 0

    def update(self, data: Buffer) -> None:
        if self.crc64nvme is not None:
            self.crc64nvme = crc64nvme(data, self.crc64nvme)
        if self.crc32c is not None:
            self.crc32c = crc32c(data, self.crc32c)
        self.length += len(data)

    def join(self, after: Sums) -> None:
        """Append the sums of the bytes that follow."""
        if after.length == 0:
            return
        if self.length == 0:
            self.crc64nvme, self.crc32c, self.length = after.crc64nvme, after.crc32c, after.length
            return
        if self.crc64nvme is not None and after.crc64nvme is not None:
            self.crc64nvme = crc64nvme_joined(self.crc64nvme, after.crc64nvme, after.length)
        if self.crc32c is not None and after.crc32c is not None:
            self.crc32c = crc32c_joined(self.crc32c, after.crc32c, after.length)
        self.length += after.length


def wanted(request: CopyRequest, *, verify: bool) -> Sums:
    """The sums to compute for a request."""
    if not verify:
        return Sums()
    return Sums(0, 0 if request.crc32c is not None else None)


def stored_sum(head: Head) -> int | None:
    """CRC64NVME that a store returned, of a whole object or a range; None: there is none.

    Raises:
        BadResponse: it is not a checksum.
    """
    text = head.headers.get("x-amz-checksum-crc64nvme")
    # A composite checksum is one of checksums, written with the number of parts: it tells nothing here.
    if not text or "-" in text or head.headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    try:
        return from_text(text)
    except UsageError as error:
        raise BadResponse(f"{text[:40]!r} is not a checksum") from error


def compare(request: CopyRequest, sums: Sums) -> str:
    """Compare with what the request promises. Returns the strongest check that was made.

    Raises:
        IntegrityError: a sum differs.
    """
    strongest = "size"
    if sums.crc32c is not None and request.crc32c is not None:
        differs(request.source, "CRC32C", sums.crc32c, request.crc32c, 4)
        strongest = "crc32c"
    if sums.crc64nvme is not None and request.crc64nvme is not None:
        differs(request.source, "CRC64NVME", sums.crc64nvme, request.crc64nvme, 8)
        strongest = "crc64nvme"
    return strongest


def differs(subject: str, kind: str, found: int, promised: int, width: int) -> None:
    """Raise ``IntegrityError`` where two sums are not the same."""
    if found != promised:
        raise IntegrityError(
            f"{subject}: {kind} is {to_base64(found, width)} instead of {to_base64(promised, width)}",
        )
