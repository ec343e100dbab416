"""From local files to state handles."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.checksums import crc64nvme_of_file
from ..backends.closeables import CloseableRegistry
from ..backends.errors import TransferError
from ..backends.landing import reading
from ..backends.options import OptionGroup, option, parse_size
from ..backends.report import CopyReport, Progress
from ..backends.request import CopyRequest
from .checkpoint.layout import CheckpointLocation
from .file_systems import FileSystems
from .handles import InMemoryHandle, RelativeFileHandle
from .linking import link_files, snapshot_plan
from .objects import Objects
from .strategy import Plan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StateOptions(OptionGroup):
    """Options ``state.*``."""

    inline_threshold: int = option(
        "state.inline-threshold",
        20 * 1024,
        parse=parse_size,
        shown="20kb",
        help="State files below this size travel inside a checkpoint's metadata.",
    )


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file and the scope that it shall have: ``shared`` or ``exclusive``."""

    path: str
    scope: str


class StateUploader:
    """Brings local files into a checkpoint, all of them or none."""

    def __init__(self, file_systems: FileSystems) -> None:
        self.file_systems = file_systems
        self._objects = Objects(file_systems.configuration)
        self._threshold = file_systems.configuration.of(StateOptions).inline_threshold

    def upload(
        self,
        location: CheckpointLocation,
        uploads: Sequence[Upload],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        strategy: Plan | None = None,
    ) -> tuple[tuple[RelativeFileHandle | InMemoryHandle, ...], CopyReport]:
        """Upload every file under a new random name; small ones become part of their handle.

        If it fails, and once all work has ended, what had been uploaded is deleted.

        Args:
            strategy: decides which files are linked; by default that of an incremental checkpoint.

        Returns:
            A handle per upload, in the order given, with size and CRC64NVME; and the report.

        Raises:
            CheckpointError: an unknown scope.
            SourceNotFound: a file is missing.
            CopyFailed: a file could not be copied.
            CopyCancelled: ``closeables`` was closed.
        """
        started = time.monotonic()
        handles: list[RelativeFileHandle | InMemoryHandle] = []
        requests: list[CopyRequest] = []
        for upload in uploads:
            closeables.check()
            handle = self._handle(upload)
            handles.append(handle)
            if isinstance(handle, RelativeFileHandle):
                requests.append(_request(location, handle, upload.path))
        report = CopyReport()
        if requests:
            plan = strategy or snapshot_plan(self.file_systems, location, os.path.dirname(requests[0].source))
            report = self._copy(requests, plan, closeables, progress)
        return tuple(handles), CopyReport(report.files, time.monotonic() - started)

    def _handle(self, upload: Upload) -> RelativeFileHandle | InMemoryHandle:
        with reading(upload.path):
            size = os.stat(upload.path).st_size
            if size < self._threshold:
                with open(upload.path, "rb") as file:
                    return InMemoryHandle(file.read())
            checksum = crc64nvme_of_file(upload.path)
        return RelativeFileHandle(upload.scope, str(uuid.uuid4()), size, checksum)

    def _copy(
        self,
        requests: Sequence[CopyRequest],
        strategy: Plan,
        closeables: CloseableRegistry,
        progress: Progress | None,
    ) -> CopyReport:
        try:
            linked, left = link_files(requests, strategy, closeables, uploads=True, progress=progress)
            report = self.file_systems.copy(left, closeables, progress=progress)
            return CopyReport((*linked, *report.files), report.seconds)
        except BaseException:
            self._delete([request.destination for request in requests])
            raise

    def _delete(self, uris: Sequence[str]) -> None:
        try:
            self._objects.delete(uris)
        except TransferError as error:
            # The failure of the upload is the one to report; what stays is named in no checkpoint.
            _log.warning("could not delete what a failed upload left: %s", error)


def _request(location: CheckpointLocation, handle: RelativeFileHandle, path: str) -> CopyRequest:
    destination = location.resolve(handle).uri
    return CopyRequest(path, destination, size=handle.size, crc64nvme=handle.crc64nvme)
