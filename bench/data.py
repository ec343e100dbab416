"""Objects to copy: made once per run, each with different bytes and a known checksum."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..backends.checksums import crc64nvme, crc64nvme_of_file

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Shape:
    """So many objects of one size."""

    count: int
    size: int

    @property
    def bytes(self) -> int:
        return self.count * self.size

    def __str__(self) -> str:
        return f"{self.count} x {size_text(self.size)}"

    @property
    def prefix(self) -> str:
        """Where its objects lie in the bucket."""
        return f"{self.count}x{self.size}"


@dataclass(frozen=True)
class Object:
    """One object and what its bytes must be."""

    key: str
    size: int
    crc64nvme: int

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


def size_text(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):g} {unit}"
    return f"{size} B"


def make_objects(bucket: Path, shape: Shape) -> list[Object]:
    """Write the shape's objects into a bucket's directory."""
    (bucket / shape.prefix).mkdir(parents=True, exist_ok=True)
    block = os.urandom(_BLOCK)
    return [_make_object(bucket, f"{shape.prefix}/{n:06}.sst", shape.size, block) for n in range(shape.count)]


def _make_object(bucket: Path, key: str, size: int, block: bytes) -> Object:
    checksum = 0
    with (bucket / key).open("wb", buffering=0) as file:
        for number, part in enumerate(_parts(size, block)):
            # Different bytes at every place, so that swapped parts and files are noticed.
            marked = (f"{key}:{number};".encode() + part)[: len(part)]
            checksum = crc64nvme(marked, checksum)
            file.write(marked)
    return Object(key, size, checksum)


def _parts(size: int, block: bytes) -> Iterator[bytes]:
    for start in range(0, size, len(block)):
        yield block[: min(len(block), size - start)]


def wrong_files(directory: Path, objects: list[Object]) -> str | None:
    """Why the files in ``directory`` are not these objects, or None where they are."""
    for each in objects:
        path = directory / each.name
        if not path.is_file():
            return f"{each.name} is missing"
        if path.stat().st_size != each.size:
            return f"{each.name} has {path.stat().st_size} bytes instead of {each.size}"
        if crc64nvme_of_file(path) != each.crc64nvme:
            return f"{each.name} has wrong bytes"
    return None


def empty(directory: Path) -> Path:
    """A directory with nothing in it; what was there is emptied and set aside until the run's end.

    Not deleted: ext4 gives the inodes of files that were just deleted to nobody for minutes, and
    searches past all of them at every creation, so that the cleaning up after one contender would
    be charged to the next (fs/ext4/ialloc.c, ``recently_deleted``).
    """
    if directory.is_dir():
        for path in directory.rglob("*"):
            if path.is_file():
                os.truncate(path, 0)
        directory.rename(directory.with_name(f".{directory.name}-{time.monotonic_ns()}"))
    directory.mkdir(parents=True)
    return directory
