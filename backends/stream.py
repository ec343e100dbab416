"""Bytes copy over any two file systems: read a stream, write a stream.

The way that works everywhere, and the baseline of the benchmarks: what Flink did before it
copied by paths.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .batch import BatchPolicy, run_batch
from .closeables import CloseableRegistry
from .errors import StalledTransfer, TransferError
from .landing import StagingArea
from .options import Configuration, OptionGroup, option, parse_size
from .report import CopiedFile, CopyReport, Progress
from .request import CopyRequest, locate
from .s3_access import S3Access
from .s3_options import S3Options
from .stream_client import make_session, open_client
from .stream_copy import Pulse, Pumped, Sink, Source, Tally, pump
from .stream_files import FileSink, FileSource
from .stream_fsspec import FsspecSink, FsspecSource, Mounts, is_known
from .stream_lane import Lane, Lanes
from .stream_s3 import SMALLEST_PART, S3Sink, S3Source
from .transfer_options import TransferOptions, parse_whole

#: Seconds in which a cancelled upload is aborted; ending the whole copy has one second.
_GRACE = 0.6


def _at_least_one(text: str) -> int:
    value = parse_whole(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _part_size(text: str) -> int:
    value = parse_size(text)
    if value < SMALLEST_PART:
        raise ValueError("S3's parts have at least 5mb")
    return value


@dataclass(frozen=True, kw_only=True)
class StreamOptions(OptionGroup):
    """Options ``stream.*``. Memory: about ``parallel`` times ``part-size`` up, times 2 MiB down."""

    parallel: int | None = option(
        "stream.parallel",
        None,
        parse=_at_least_one,
        shown="transfer.threads",
        help="Files in flight at once in the stream backend; 1 copies one after another.",
    )
    part_size: int = option(
        "stream.part-size",
        8 << 20,
        parse=_part_size,
        shown="8mb",
        help="Bytes per request of an upload; of other file systems, bytes per block.",
    )


class StreamFileSystem:
    """Copies between S3, local files, and whatever fsspec knows: ``memory://``, ``gs://``, ``http://`` ..."""

    name = "stream"

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._transfer = configuration.of(TransferOptions)
        self._options = configuration.of(StreamOptions)
        self._s3_options = configuration.of(S3Options)
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._mounts = Mounts()
        self._access = S3Access(self._s3_options, replace(self._transfer, retries=0))
        self._session: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"configuration": self._configuration}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["configuration"])  # type: ignore[misc]

    def can_copy_paths(self, source: str, destination: str) -> bool:
        schemes = (locate(source).scheme, locate(destination).scheme)
        return all(scheme in {"file", "s3"} or is_known(scheme) for scheme in schemes)

    def copy_files(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        if self._pid != os.getpid():
            self._reset()
        policy = BatchPolicy(
            backend=self.name,
            workers=self._options.parallel or self._transfer.threads,
            retries=self._transfer.retries,
            deadline=deadline,
            fail_fast=fail_fast,
        )
        lanes = Lanes(self._open_client)
        try:
            with StagingArea(fsync=self._transfer.fsync) as staging:

                def copy_one(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
                    lane = lanes.own()
                    copy = _Copy(self, request, registry, lane, staging, progress)
                    return lane.run(copy.run, registry)

                return run_batch(requests, copy_one, policy, closeables)
        finally:
            lanes.close()

    async def _open_client(self) -> Any:
        # Sessions load botocore's model of S3, which takes 70 ms; clients of one session share it.
        with self._lock:
            if self._session is None:
                self._session = make_session(self._access)
            return await open_client(self._access, self._session)

    def close(self) -> None:
        self._mounts.close()
        self._access.close()
        with self._lock:
            self._session = None


@dataclass
class _Copy:
    """One attempt at one file."""

    owner: StreamFileSystem
    request: CopyRequest
    registry: CloseableRegistry
    lane: Lane
    staging: StagingArea
    progress: Progress | None
    moved: int = 0

    async def run(self) -> CopiedFile:
        started = time.monotonic()
        stall = self.owner._transfer.stall_timeout
        try:
            pumped = await self._within(stall)
        except TimeoutError as error:
            self._take_back()
            if isinstance(error, TransferError):
                raise
            message = f"{self.request.source}: no byte moved for {stall:g} s"
            raise StalledTransfer(message, request=self.request) from error
        except BaseException:
            self._take_back()
            raise
        seconds = time.monotonic() - started
        return CopiedFile(
            self.request,
            self.owner.name,
            pumped.bytes,
            seconds,
            verified=pumped.verified,
            crc64nvme=pumped.crc64nvme,
            etag=pumped.etag,
        )

    async def _within(self, stall: float) -> Pumped:
        """Pump under the stall timeout; what cleans up comes after it, within limits of its own."""
        source: Source | None = None
        sink: Sink | None = None
        try:
            async with asyncio.timeout(stall) as limit:
                pulse = Pulse(limit, stall)
                source = await self._source()
                pulse.beat()
                sink = await self._sink(pulse)
                tally = Tally(self.request, source, verify=self.owner._transfer.verify)
                return await pump(tally, source, sink, lambda count: self._advance(count, pulse))
        except BaseException:
            if sink is not None:
                await sink.discard()
            raise
        finally:
            if source is not None:
                await source.close()

    def _advance(self, count: int, pulse: Pulse) -> None:
        pulse.beat()
        self.registry.check()
        self.moved += count
        if self.progress:
            self.progress(self.request, count)

    def _take_back(self) -> None:
        """Another attempt begins at the first byte."""
        if self.progress and self.moved:
            self.progress(self.request, -self.moved)

    async def _source(self) -> Source:
        match locate(self.request.source).scheme:
            case "file":
                return FileSource(self.request)
            case "s3":
                return await S3Source(await self.lane.client(), self.request).open()
        return FsspecSource(self.owner._mounts, self.request, chunk_size=self.owner._options.part_size)

    async def _sink(self, pulse: Pulse) -> Sink:
        options = self.owner._options
        match locate(self.request.destination).scheme:
            case "file":
                return FileSink(self.staging, self.request)
            case "s3":
                return S3Sink(
                    await self.lane.client(),
                    self.request,
                    arguments=self.owner._s3_options.upload_arguments,
                    part_size=options.part_size,
                    beat=pulse.beat,
                    grace=lambda: _GRACE if self.registry.closed else self.owner._transfer.stall_timeout,
                    sever=self.lane.sever,
                )
        return FsspecSink(self.owner._mounts, self.request, chunk_size=options.part_size)
