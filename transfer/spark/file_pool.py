"""Downloaded SST files of one disk, by what they are copies of, so that no version downloads one twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ...backends.closeables import CloseableRegistry
from ...backends.report import CopiedFile, CopyReport, Progress
from ...backends.request import CopyRequest
from ..checkpoint.layout import CheckpointLocation, CopySource
from ..downloader import Download, StateDownloader
from ..file_systems import FileSystems
from ..handles import FileHandle, RelativeFileHandle, SegmentHandle, StateHandle
from ..linking import LINKS
from ..strategy import Plan

#: Only these are never written again once they are made.
_IMMUTABLE = ".sst"


class FilePool:
    """A directory of hard links, one per file that was downloaded and verified.

    A link is named for the source's URI, range, size and CRC64NVME, and for the file's time of
    change: a file without a checksum is never pooled, and one that something wrote to since is
    never used. A link that nothing else shares is garbage.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def index(self) -> dict[str, tuple[str, int]]:
        """Path and time of change, in ns, by the digest of what the file is a copy of."""
        found = {}
        for entry in os.scandir(self._directory):
            digest, _, modified = entry.name.partition("-")
            if modified.isdigit():
                found[digest] = entry.path, int(modified)
        return found

    def add(self, digest: str, path: str) -> None:
        """Keep a link to a file. A file system without hard links keeps none; a symbolic link is no file of ours."""
        if os.path.islink(path):
            return
        with contextlib.suppress(OSError):
            os.link(path, self._directory / f"{digest}-{os.stat(path).st_mtime_ns}")

    def trim(self) -> None:
        """Remove the links that nothing else shares."""
        for entry in os.scandir(self._directory):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_nlink == 1:
                    os.unlink(entry.path)


def digest_of(source: CopySource, crc64nvme: int) -> str:
    """Name in a pool of the bytes that a handle stands for."""
    identity = f"{source.uri}\n{source.offset}\n{source.length}\n{source.size}\n{crc64nvme:016x}"
    return hashlib.sha256(identity.encode()).hexdigest()


def pooled_digest(location: CheckpointLocation, handle: StateHandle, path: str) -> str | None:
    """Likewise, or None where the file must not be shared."""
    if not path.endswith(_IMMUTABLE) or not isinstance(handle, FileHandle | RelativeFileHandle | SegmentHandle):
        return None
    return None if handle.crc64nvme is None else digest_of(location.resolve(handle), handle.crc64nvme)


class PooledDownloader(StateDownloader):
    """A downloader that links what the pool has, downloads the rest, and pools it."""

    def __init__(self, file_systems: FileSystems, pool: FilePool) -> None:
        super().__init__(file_systems)
        self._pool = pool

    def download(
        self,
        location: CheckpointLocation,
        downloads: Sequence[Download],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        strategy: Plan | None = None,
    ) -> CopyReport:
        started = time.monotonic()
        index = self._pool.index()
        linked, missing = [], []
        for download in downloads:
            digest = pooled_digest(location, download.handle, download.path)
            copied = self._link(location, download, index.get(digest or ""))
            if copied:
                linked.append(copied)
            else:
                missing.append((download, digest))
        rest = [download for download, _ in missing]
        report = super().download(location, rest, closeables, progress=progress, deadline=deadline, strategy=strategy)
        # A link to the checkpoint's own file was not read, so nothing is known of its checksum.
        unread = {file.request.destination for file in report.files if file.method in LINKS}
        for download, digest in missing:
            if digest and download.path not in unread:
                self._pool.add(digest, download.path)
        return CopyReport((*linked, *report.files), time.monotonic() - started)

    def _link(
        self, location: CheckpointLocation, download: Download, pooled: tuple[str, int] | None
    ) -> CopiedFile | None:
        handle = download.handle
        if pooled is None or not isinstance(handle, FileHandle | RelativeFileHandle | SegmentHandle):
            return None
        started = time.monotonic()
        path, modified = pooled
        try:
            found = os.stat(path)
            if (found.st_size, found.st_mtime_ns) != (handle.size, modified):
                os.unlink(path)
                return None
            os.makedirs(os.path.dirname(download.path), exist_ok=True)
            os.link(path, download.path)
        except OSError:
            return None
        source = location.resolve(handle)
        request = CopyRequest(
            source.uri,
            download.path,
            size=source.size,
            offset=source.offset,
            length=source.length,
            crc64nvme=handle.crc64nvme,
        )
        seconds = time.monotonic() - started
        return CopiedFile(request, "reuse", handle.size, seconds, "crc64nvme", handle.crc64nvme)
