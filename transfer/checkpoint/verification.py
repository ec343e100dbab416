"""Whether a checkpoint has all of its files, whole, without restoring it.

By default only listings are read. A deep verification reads every byte, in windows of bounded
size, so that a checkpoint larger than the disk can be verified.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...backends.checksums import crc64nvme_joined, crc64nvme_of_descriptor, crc64nvme_of_file
from ...backends.closeables import CloseableRegistry
from ...backends.disk import reading
from ...backends.errors import CopyFailed, SourceNotFound, TransferError
from ...backends.report import Progress
from ...backends.request import CopyRequest, locate
from ..file_systems import FileSystems
from ..objects import Objects
from .contents import Content, contents
from .layout import CheckpointLocation
from .metadata import CheckpointMetadata

_PIECE = 32 << 20
_WINDOW = 8 * _PIECE


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that a restore would fail at."""

    checkpoint: str
    subtask: int
    file: str
    uri: str
    reason: str

    def __str__(self) -> str:
        return f"{self.checkpoint}, {self.file} of subtask {self.subtask}: {self.uri} {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found.

    Args:
        files: files that were looked at, each once.
        bytes_read: of a deep verification.
        unchecked: pieces of state without a checksum to compare, of a deep verification.
    """

    problems: tuple[Problem, ...]
    files: int
    bytes: int
    bytes_read: int = 0
    unchecked: int = 0


def verify(
    location: CheckpointLocation,
    metadata: CheckpointMetadata,
    file_systems: FileSystems,
    closeables: CloseableRegistry | None = None,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Look for missing and wrongly sized files; with ``deep`` read them all and compare CRC64NVME.

    Raises:
        CheckpointError: the metadata names what it must not.
        AccessDenied: a directory cannot be listed.
        CopyCancelled: ``closeables`` was closed.
    """
    closeables = closeables or CloseableRegistry()
    pieces = list(contents(location, metadata))
    with Objects(file_systems.configuration) as objects:
        sizes = _sizes(objects, {each.source.uri for each in pieces})
    reasons = {each.source.uri: reason for each in pieces if (reason := _wrong_size(each, sizes))}
    found = [_problem(location, each, reasons[each.source.uri]) for each in pieces if each.source.uri in reasons]
    read = unchecked = 0
    if deep:
        whole = [each for each in pieces if each.source.uri not in reasons]
        unchecked = sum(each.crc64nvme is None for each in whole)
        reader = _Reader(file_systems, closeables, progress)
        distinct = {(each.source, each.crc64nvme): each for each in whole if each.crc64nvme is not None}
        bad = {key: reason for key, each in distinct.items() if (reason := reader.wrong(each))}
        keys = [(each, (each.source, each.crc64nvme)) for each in whole]
        found += [_problem(location, each, bad[key]) for each, key in keys if key in bad]
        read = reader.bytes
    files = {each.source.uri: each.source.size for each in pieces}
    return Verification(
        problems=tuple(sorted(found, key=lambda each: (each.subtask, each.file))),
        files=len(files),
        bytes=sum(files.values()),
        bytes_read=read,
        unchecked=unchecked,
    )


def _problem(location: CheckpointLocation, content: Content, reason: str) -> Problem:
    return Problem(str(location), content.subtask, content.file.name, content.source.uri, reason)


def _wrong_size(content: Content, sizes: dict[str, int]) -> str | None:
    source = content.source
    if source.uri not in sizes:
        return "is missing"
    found = sizes[source.uri]
    return None if found == source.size else f"has {found} bytes instead of {source.size}"


def _sizes(objects: Objects, uris: Iterable[str]) -> dict[str, int]:
    """Bytes of those files that exist, by one listing per directory."""
    wanted = set(uris)
    found = {}
    for directory in {uri.rpartition("/")[0] + "/" for uri in wanted}:
        for each in _listed(objects, directory):
            if each[0] in wanted:
                found[each[0]] = each[1]
    return found


def _listed(objects: Objects, directory: str) -> Iterator[tuple[str, int]]:
    try:
        for each in objects.list(directory):
            yield each.uri, each.size
    except SourceNotFound:
        return


class _Reader:
    """Reads pieces of state and compares their checksums."""

    def __init__(self, file_systems: FileSystems, closeables: CloseableRegistry, progress: Progress | None) -> None:
        self._file_systems = file_systems
        self._closeables = closeables
        self._progress = progress
        self.bytes = 0

    def wrong(self, content: Content) -> str | None:
        """What is wrong with a piece's bytes, if anything is."""
        self._closeables.check()
        source = content.source
        length = source.size if source.length is None else source.length
        try:
            if locate(source.uri).is_local:
                found = self._local(locate(source.uri).key, source.offset, length)
            else:
                found = self._remote(source.uri, source.offset, length, source.size)
        except CopyFailed as failure:
            return f"cannot be read: {failure.errors[0].args[0]}"
        except TransferError as error:
            return f"cannot be read: {error.args[0]}"
        wanted = content.crc64nvme
        return None if found == wanted else f"is corrupt: CRC64NVME is {found:016x} instead of {wanted:016x}"

    def _local(self, path: str, offset: int, length: int) -> int:
        with reading(path), open(path, "rb") as file:
            self.bytes += length
            return crc64nvme_of_descriptor(file.fileno(), offset, length)

    def _remote(self, uri: str, offset: int, length: int, size: int) -> int:
        """Joined from pieces that go through a scratch directory, at most `_WINDOW` bytes at a time."""
        value = 0
        for start in range(0, length, _WINDOW):
            here = range(start, min(length, start + _WINDOW), _PIECE)
            with tempfile.TemporaryDirectory(prefix="statelift-verify-") as scratch:
                requests = [
                    CopyRequest(
                        uri,
                        os.path.join(scratch, str(each)),
                        size=size,
                        offset=offset + each,
                        length=min(_PIECE, length - each),
                    )
                    for each in here
                ]
                value = self._joined(value, requests)
        return value

    def _joined(self, value: int, requests: Sequence[CopyRequest]) -> int:
        self._file_systems.copy(requests, self._closeables, progress=self._progress)
        for request in requests:
            count = request.length or 0
            value = crc64nvme_joined(value, crc64nvme_of_file(request.destination), count)
            self.bytes += count
        return value
