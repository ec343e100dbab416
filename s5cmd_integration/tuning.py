"""How many files at once and in which parts, from their sizes and what this machine has.

s5cmd's own defaults (256 workers, parts of 50 MiB, 5 at once) open 300 connections for 400 small
files and read any file of up to 50 MiB on one connection. Here the number of connections is
chosen, and files are cut into parts only where there are fewer files than connections: the parts
behind the first start when that one is complete, so they are made small then.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
SMALL = MIB
#: Connections per CPU. Large files use up a CPU with fewer; small ones wait for round trips.
_LARGE_PER_CPU, _SMALL_PER_CPU = 16, 32
_MOST_WORKERS = 128
#: s5cmd runs at least two.
FEWEST_WORKERS = 2
_MOST_PARTS_AT_ONCE = 16
_PART = 16 * MIB
#: Uploads up to this size are one request, which leaves nothing behind when it is interrupted.
SINGLE_UPLOAD = 64 * MIB
#: Parts of one upload (AWS, "Amazon S3 multipart upload limits"), with room to spare.
_MOST_PARTS = 9_000
#: A part that no object exceeds: one request, one version of the object.
_WHOLE = 1 << 20
_DESCRIPTORS_BESIDE = 32


@dataclass(frozen=True, slots=True)
class Parts:
    """How one file is cut: the size of a part in MiB, and parts in flight at once."""

    mebibytes: int
    at_once: int

    @property
    def is_whole(self) -> bool:
        """Whether a download is one request, so that it is one version of the object."""
        return self.mebibytes >= _WHOLE


WHOLE = Parts(_WHOLE, 1)


def workers_for(sizes: Sequence[int | None], cpus: int, descriptors: int) -> int:
    """Files in flight at once: by the typical size, the CPUs, and the descriptors (0: no limit)."""
    known = [size for size in sizes if size is not None]
    typical = statistics.median(known) if known else _PART
    wanted = (_SMALL_PER_CPU if typical < SMALL else _LARGE_PER_CPU) * cpus
    if descriptors:
        # A socket and a file for each, and a connection that idles.
        wanted = min(wanted, (descriptors - _DESCRIPTORS_BESIDE) // 3)
    return max(FEWEST_WORKERS, min(wanted, _MOST_WORKERS, len(sizes)))


def connections_for(cpus: int, descriptors: int) -> int:
    """Connections that large files share."""
    wanted = _LARGE_PER_CPU * cpus
    return max(1, min(wanted, _MOST_WORKERS, (descriptors - _DESCRIPTORS_BESIDE) // 3) if descriptors else wanted)


def descriptor_limit() -> int:
    """Files that a child may open, 0 for no limit; s5cmd raises its soft limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 0 if hard == resource.RLIM_INFINITY else hard


def download_parts(size: int | None, files: int, connections: int) -> Parts:
    """Parts of a download where so many files share the connections."""
    share = min(connections // max(1, files), _MOST_PARTS_AT_ONCE)
    if size is None or share < 2 or size < 2 * _PART:
        return WHOLE
    part = max(_PART, _ceil(size, 2 * share))
    return Parts(_ceil(part, MIB), min(share, _ceil(size, part)))


def upload_parts(size: int, files: int, connections: int) -> Parts:
    """Parts of an upload. Up to `SINGLE_UPLOAD` it is one request."""
    if size <= SINGLE_UPLOAD:
        return Parts(SINGLE_UPLOAD // MIB, 1)
    part = max(SINGLE_UPLOAD, _ceil(size, _MOST_PARTS))
    share = min(connections // max(1, files), _MOST_PARTS_AT_ONCE, _ceil(size, part))
    return Parts(_ceil(part, MIB), max(1, share))


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
