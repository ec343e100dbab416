"""Copies through s3transfer, the AWS SDK's transfer manager, classic or on the CRT."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .batch import BatchPolicy, run_batch
from .closeables import CloseableRegistry
from .crt_client import CrtClient
from .errors import BackendUnavailable, UnsupportedCopy
from .landing import StagingArea
from .options import Configuration, OptionGroup, option, parse_size
from .report import CopiedFile, CopyReport, Progress
from .request import CopyRequest, locate
from .s3_access import S3Access
from .s3_options import S3Options
from .sdk_classic import ClassicEngine
from .sdk_crt import CrtEngine
from .sdk_files import Advance, Copied
from .transfer_options import TransferOptions, parse_whole

_SMALLEST_PART = 5 << 20


def _client(text: str) -> str:
    if text not in {"classic", "crt"}:
        raise ValueError("one of classic, crt")
    return text


def _part_size(text: str) -> int:
    value = parse_size(text)
    if value < _SMALLEST_PART:
        raise ValueError("S3's parts have at least 5mb")
    return value


def _at_least_one(text: str) -> int:
    value = parse_whole(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise ValueError("must be positive")
    return value


@dataclass(frozen=True, kw_only=True)
class SdkOptions(OptionGroup):
    """Options ``sdk.*``. Memory: classic about ``requests`` times 2 MiB; the CRT up to ``crt.memory``."""

    client: str = option(
        "sdk.client", "classic", parse=_client, help="The manager of the sdk backend: classic, or crt (needs awscrt)."
    )
    part_size: int = option(
        "sdk.part-size",
        16 << 20,
        parse=_part_size,
        shown="16mb",
        help="Files from this size on are moved in parts of this size.",
    )
    copy_part_size: int = option(
        "sdk.copy-part-size",
        256 << 20,
        parse=_part_size,
        shown="256mb",
        help="Likewise of copies within the store, which move nothing and must only answer in time.",
    )
    requests: int = option(
        "sdk.requests", 8, parse=_at_least_one, help="Requests in flight at once, over all files of a batch."
    )
    crt_throughput: float = option(
        "sdk.crt.throughput",
        5.0,
        parse=_positive,
        help="Gbit/s that the CRT aims at; it chooses its connections and buffers by that.",
    )
    crt_memory: int = option(
        "sdk.crt.memory", 1 << 30, parse=parse_size, shown="1gb", help="Limit of the CRT's buffers; 1gb is its least."
    )


class _Engine(Protocol):
    def copy(self, request: CopyRequest, advance: Advance) -> Copied: ...

    def close(self) -> None: ...


class SdkFileSystem:
    """``s3://`` to and from local paths; with the classic manager also within the store, server-side.

    Raises:
        BackendUnavailable: the CRT is asked for and awscrt is not installed.
    """

    name = "sdk"

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._transfer = configuration.of(TransferOptions)
        self._options = configuration.of(SdkOptions)
        self._access = S3Access(configuration.of(S3Options), self._transfer)
        self._crt: CrtClient | None = None
        if self._options.client == "crt":
            if importlib.util.find_spec("awscrt") is None:
                raise BackendUnavailable(
                    "sdk.client = crt needs awscrt", remedy="pip install 'statelift[crt]'", backend=self.name
                )
            options = self._options
            self._crt = CrtClient(
                self._access,
                part_size=options.part_size,
                throughput=options.crt_throughput,
                memory=options.crt_memory,
                requests=options.requests,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"configuration": self._configuration}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["configuration"])  # type: ignore[misc]

    def can_copy_paths(self, source: str, destination: str) -> bool:
        schemes = (locate(source).scheme, locate(destination).scheme)
        return schemes in {("s3", "file"), ("file", "s3")} or (schemes == ("s3", "s3") and self._crt is None)

    def copy_files(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        policy = BatchPolicy(
            backend=self.name,
            workers=self._transfer.threads,
            # The classic manager tries single requests again; the CRT too, but it waits for a silent server.
            retries=self._transfer.retries if self._crt else 0,
            deadline=deadline,
            fail_fast=fail_fast,
        )
        with StagingArea(fsync=self._transfer.fsync) as staging:
            engines = _OnFirstUse(lambda registry: self._engine(registry, staging))

            def copy_one(request: CopyRequest, registry: CloseableRegistry) -> CopiedFile:
                return self._copy(request, engines.get(registry), progress)

            try:
                return run_batch(requests, copy_one, policy, closeables)
            finally:
                engines.close()

    def _engine(self, registry: CloseableRegistry, staging: StagingArea) -> _Engine:
        if self._crt:
            return CrtEngine(self._crt, self._access, registry, staging)
        return ClassicEngine(
            self._access,
            registry,
            staging,
            part_size=self._options.part_size,
            copy_part_size=self._options.copy_part_size,
            requests=self._options.requests,
        )

    def _copy(self, request: CopyRequest, engine: _Engine, progress: Progress | None) -> CopiedFile:
        if not self.can_copy_paths(request.source, request.destination):
            raise UnsupportedCopy(f"sdk copies no {request.source} to {request.destination}", request=request)
        started = time.monotonic()

        def advance(count: int) -> None:
            if progress and count:
                progress(request, count)

        copied = engine.copy(request, advance)
        return CopiedFile(
            request,
            copied.method,
            copied.bytes,
            time.monotonic() - started,
            verified=copied.verified,
            crc64nvme=copied.crc64nvme,
            etag=copied.etag,
        )

    def close(self) -> None:
        if self._crt:
            self._crt.close()
        self._access.close()


class _OnFirstUse:
    """The engine of a batch, which ends with the batch's own registry."""

    def __init__(self, make: Callable[[CloseableRegistry], _Engine]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: _Engine | None = None

    def get(self, registry: CloseableRegistry) -> _Engine:
        with self._lock:
            if self._made is None:
                self._made = self._make(registry)
            return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
