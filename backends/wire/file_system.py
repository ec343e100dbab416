"""The ``wire`` backend: the engine behind the interface that all backends share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..batch import _check_space
from ..closeables import CloseableRegistry
from ..options import Configuration
from ..report import CopyReport, Progress
from ..request import CopyRequest, locate
from ..s3_access import S3Access
from ..s3_options import S3Options
from ..transfer_options import TransferOptions
from .client import Client
from .endpoint import Endpoints
from .engine import Batch, Engine
from .loop import Loop
from .options import WireOptions
from .pool import Pool
from .reading import read_object
from .retry import Budget


class WireFileSystem:
    """Copies between S3 and local files, and from S3 to S3, over sockets of its own.

    A batch runs in the thread that calls `copy_files`; connections are kept between batches.
    """

    name = "wire"

    def __init__(self, configuration: Configuration) -> None:
        self.options = configuration.of(WireOptions)
        self._access = S3Access(configuration.of(S3Options), configuration.of(TransferOptions))
        self._reset()

    def _reset(self) -> None:
        self._pool: Pool | None = None
        self._endpoints: Endpoints | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_access": self._access}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def can_copy_paths(self, source: str, destination: str) -> bool:
        """Whether one side is S3 and the other is S3 or local."""
        schemes = {locate(source).scheme, locate(destination).scheme}
        return "s3" in schemes and schemes <= {"s3", "file"}

    def copy_files(
        self,
        requests: Sequence[CopyRequest],
        closeables: CloseableRegistry,
        *,
        progress: Progress | None = None,
        deadline: float | None = None,
        fail_fast: bool = True,
    ) -> CopyReport:
        """See `PathsCopyingFileSystem.copy_files`."""
        closeables.check()
        if not requests:
            return CopyReport()
        _check_space(requests, self.name)
        limit = deadline if deadline is not None else self._access.transfer.deadline
        pool, endpoints = self._own()
        batch = Batch(requests, progress, limit, fail_fast)
        return Engine(self._access, self.options, endpoints, pool, batch).run(closeables)

    def read(self, uri: str, *, at_most: int | None = None) -> bytes:
        """A whole object of S3, into memory.

        Raises:
            IntegrityError: it has more than ``at_most`` bytes; it was not read.
            TransferError: it cannot be read.
        """
        pool, endpoints = self._own()
        loop, found = Loop(), list[bytes]()
        client = Client(loop, self._access, endpoints, pool, self.options)
        budget = Budget(self._access.transfer.retries, self.options.retry_time)

        async def read() -> None:
            verify = self._access.transfer.verify
            found.append(await read_object(client, uri, budget, at_most=at_most, verify=verify))

        loop.spawn(read())
        try:
            loop.run()
        finally:
            loop.close()
            pool.leave(loop, keep=bool(found))
        return found[0]

    def _own(self) -> tuple[Pool, Endpoints]:
        """This process's connections: those of a parent are not ours to use."""
        if self._pool is not None and self._pool.pid != os.getpid():
            self._pool.forget()
            self._reset()
        if self._pool is None or self._endpoints is None:
            self._endpoints = Endpoints(self._access)
            self._pool = Pool(self._access, self.options)
        return self._pool, self._endpoints

    def close(self) -> None:
        """Close the kept connections; the next copy makes new ones."""
        if self._pool is not None and self._pool.pid == os.getpid():
            self._pool.close()
        self._reset()
        self._access.close()
