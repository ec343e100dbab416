"""Keyed state as a job leaves it: RocksDB files of natural sizes in a checkpoint, and what must be in them."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..backends.checksums import crc64nvme
from ..backends.options import Configuration
from ..transfer.checkpoint.layout import CheckpointLocation
from ..transfer.checkpoint.metadata import CheckpointMetadata
from ..transfer.checkpoint.store import CheckpointStore
from ..transfer.file_systems import FileSystems
from ..transfer.handles import KeyedStateHandle, KeyGroupRange, key_groups_of
from ..transfer.keyed.database import KeyedState
from ..transfer.uploader import StateUploader

MAX_PARALLELISM = 128
VALUE = 1024
_NOISE = random.Random(20).randbytes(4 << 20)


def key_group_of_row(number: int) -> int:
    """Rows of consecutive numbers lie in scattered key groups, as hashed keys do."""
    return (number * 2654435761 >> 8) % MAX_PARALLELISM


def key_of(number: int) -> bytes:
    return b"user-%012d" % number


def value_of(number: int) -> bytes:
    """A kilobyte that does not compress."""
    start = number * 7919 % (len(_NOISE) - VALUE)
    return number.to_bytes(8, "big") + _NOISE[start : start + VALUE - 8]


@dataclass(frozen=True)
class Digest:
    """Number of rows, and the sum of their checksums: alike for any order of the same rows."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.sum + other.sum) % 2**64)


def digest(rows: Iterator[tuple[int, bytes, bytes]]) -> Digest:
    count = total = 0
    for _key_group, key, value in rows:
        count += 1
        total += crc64nvme(value, crc64nvme(key))
    return Digest(count, total % 2**64)


@dataclass(frozen=True)
class Job:
    """A checkpoint of ``rows`` rows, written at ``parallelism``.

    Args:
        root: directory of the bucket; ``name`` is the checkpoint's base in it.
    """

    name: str
    rows: int
    parallelism: int
    digests: tuple[Digest, ...]

    @property
    def checkpoint(self) -> str:
        return f"{self.name}/chk-1"

    def expected(self, key_groups: KeyGroupRange) -> Digest:
        return sum((self.digests[each] for each in key_groups), Digest())


@cache
def build(bucket: Path, scratch: Path, *, size: int, parallelism: int) -> Job:
    """Write rows of ``size`` bytes into RocksDB and checkpoint them into the bucket's directory, once."""
    rows = size // VALUE
    name = f"job-{parallelism}-{size >> 20}"
    location = CheckpointLocation(str(bucket / name), 1)
    configuration = Configuration(environ={})
    with FileSystems(configuration, backend="local") as systems:
        uploader = StateUploader(systems)
        states = tuple(
            _subtask(
                scratch / f"{name}-{each}", rows, key_groups_of(each, parallelism, MAX_PARALLELISM), location, uploader
            )
            for each in range(parallelism)
        )
    with CheckpointStore(configuration) as store:
        store.write(location, CheckpointMetadata(1, MAX_PARALLELISM, parallelism, states, created=time.time()))
    return Job(name, rows, parallelism, _digests(rows))


def _subtask(
    directory: Path, rows: int, key_groups: KeyGroupRange, location: CheckpointLocation, uploader: StateUploader
) -> KeyedStateHandle:
    own = ((group, number) for number in range(rows) if (group := key_group_of_row(number)) in key_groups)
    with KeyedState.open(directory, key_groups, MAX_PARALLELISM) as state:
        state.write((group, key_of(number), value_of(number)) for group, number in own)
        handle = state.snapshot(location, uploader)
    shutil.rmtree(directory)
    return handle


def _digests(rows: int) -> tuple[Digest, ...]:
    sums, counts = [0] * MAX_PARALLELISM, [0] * MAX_PARALLELISM
    for number in range(rows):
        group = key_group_of_row(number)
        counts[group] += 1
        sums[group] += crc64nvme(value_of(number), crc64nvme(key_of(number)))
    return tuple(Digest(count, total % 2**64) for count, total in zip(counts, sums, strict=True))


def wrong_state(directory: Path, job: Job, key_groups: KeyGroupRange) -> str | None:
    """Why the restored database is not what the job wrote, or None where every row is right."""
    with KeyedState.open(directory) as state:
        found = digest(state.items())
    expected = job.expected(key_groups)
    if found.rows != expected.rows:
        return f"{found.rows} rows instead of {expected.rows}"
    return None if found == expected else "wrong rows"
