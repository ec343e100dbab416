"""CRC64NVME and CRC32C: of buffers, of files, joined from parts, and as S3 writes them.

CRC64NVME is the checksum that S3 keeps for whole objects (AWS, "Checking object integrity");
its parameters are those of the NVM Express NVM Command Set Specification 1.0d, figure 120.
"""

from __future__ import annotations

import base64
import binascii
import os
import string
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from .errors import UsageError

Buffer: TypeAlias = bytes | bytearray | memoryview
_READ = 1 << 20
_AWSCRT_FROM = 4 << 30
_summed = 0


@cache
def _models() -> tuple[Any, Any]:
    import anycrc

    return anycrc.Model("CRC64-NVME"), anycrc.Model("CRC32-ISCSI")


@cache
def _functions() -> tuple[Callable[[Buffer, int], int], Callable[[Buffer, int], int]]:
    """(crc64nvme, crc32c): awscrt's where it is installed (about 50 GiB/s), else anycrc's (about 18)."""
    try:
        from awscrt.checksums import crc32c, crc64nvme
    except ImportError:
        slow64, slow32 = _models()
        return slow64.calc, slow32.calc
    return crc64nvme, crc32c


def _functions_for(size: int) -> tuple[Callable[[Buffer, int], int], Callable[[Buffer, int], int]]:
    """The functions for ``size`` more bytes: loading awscrt takes 70 ms of CPU, which pays from some gigabytes on."""
    global _summed
    _summed += size
    if _summed >= _AWSCRT_FROM or "awscrt.checksums" in sys.modules:
        return _functions()
    slow64, slow32 = _models()
    return slow64.calc, slow32.calc


def crc64nvme(data: Buffer, previous: int = 0) -> int:
    """CRC64NVME of ``data``, continuing from the checksum of what came before it."""
    return _functions_for(len(data))[0](data, previous)


def crc32c(data: Buffer, previous: int = 0) -> int:
    """CRC32C (Castagnoli, RFC 3720 B.4) of ``data``, continuing from ``previous``."""
    return _functions_for(len(data))[1](data, previous)


def crc64nvme_joined(first: int, second: int, second_length: int) -> int:
    """Checksum of two adjacent parts from the checksum of each and the bytes of the second."""
    return int(_models()[0].combine(first, second, second_length))


def crc32c_joined(first: int, second: int, second_length: int) -> int:
    return int(_models()[1].combine(first, second, second_length))


def _checksum_of_descriptor(fd: int, function: Callable[[Buffer, int], int], offset: int, length: int | None) -> int:
    buffer = memoryview(bytearray(_READ))
    value, left = 0, length
    while left is None or left > 0:
        window = buffer if left is None else buffer[: min(left, _READ)]
        count = os.preadv(fd, [window], offset)
        if count == 0:
            break
        value = function(window[:count], value)
        offset += count
        left = None if left is None else left - count
    return value


def crc64nvme_of_descriptor(fd: int, offset: int = 0, length: int | None = None) -> int:
    """Checksum of a range of an open file, whose position is left alone; reads 1 MiB at a time."""
    return _checksum_of_descriptor(fd, crc64nvme, offset, length)


def crc32c_of_descriptor(fd: int, offset: int = 0, length: int | None = None) -> int:
    return _checksum_of_descriptor(fd, crc32c, offset, length)


def crc64nvme_of_file(path: str | os.PathLike[str]) -> int:
    """Checksum of a local file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return crc64nvme_of_descriptor(fd)
    finally:
        os.close(fd)


def to_base64(value: int, width: int = 8) -> str:
    """As S3's ``x-amz-checksum-*`` headers carry it: big-endian bytes in base64."""
    return base64.b64encode(value.to_bytes(width, "big")).decode()


def from_text(text: str, width: int = 8) -> int:
    """A checksum written in S3's base64 (12 characters for CRC64NVME) or as hexadecimal digits.

    Raises:
        UsageError: it is neither.
    """
    # Base64 of 4 bytes ends with padding, of 8 bytes is shorter: never only as many hexadecimal digits.
    if len(text) == 2 * width and set(text) <= set(string.hexdigits):
        return int(text, 16)
    try:
        raw = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise UsageError(f"not a checksum: {text!r}") from error
    if len(raw) != width:
        raise UsageError(f"not a checksum of {width} bytes: {text!r}")
    return int.from_bytes(raw, "big")
