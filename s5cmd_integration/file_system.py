"""The ``s5cmd`` backend: copies by an s5cmd child process behind the interface that all backends share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..backends.batch import as_error_of
from ..backends.closeables import CloseableRegistry
from ..backends.errors import CopyFailed, TransferError
from ..backends.landing import require_space
from ..backends.options import Configuration
from ..backends.report import CopyReport, Progress
from ..backends.request import CopyRequest, locate
from ..backends.s3_access import S3Access
from ..backends.s3_options import S3Options
from ..backends.transfer_options import TransferOptions
from .command import Launch, refusal_of_pair
from .copying import NAME, Batch, copy_batch
from .options import S5cmdOptions
from .program import check_program, find_program


class S5cmdFileSystem:
    """Copies between S3 and local files, and from S3 to S3, by s5cmd processes fed with lines.

    What s5cmd cannot do safely is refused, file by file: `can_copy_paths` says so of names, and
    `copy_files` of ranges and sizes by ``UnsupportedCopy``.

    Raises:
        BackendUnavailable: ``s3.s5cmd.path`` names no s5cmd that runs here with ``s3.s5cmd.args``.
    """

    name = NAME

    def __init__(self, configuration: Configuration) -> None:
        self.options = configuration.of(S5cmdOptions)
        self._access = S3Access(configuration.of(S3Options), configuration.of(TransferOptions))
        self._program: str | None = None
        self._launch()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_access": self._access}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The program may lie elsewhere in the process that unpickles this.
        self.__dict__.update(state, _program=None)

    def _launch(self) -> Launch:
        if self._program is None:
            program = find_program(self.options.path)
            check_program(program, self.options.args.words)
            self._program = program
        return Launch(self._program, self._access.options, self.options)

    def can_copy_paths(self, source: str, destination: str) -> bool:
        """Whether s5cmd copies between these schemes, and can be given these names."""
        pair = locate(source), locate(destination)
        return refusal_of_pair(*pair, self._access.options) is None

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
        launch = self._prepared(requests)
        limit = deadline if deadline is not None else self._access.transfer.deadline
        return copy_batch(Batch(requests, progress, limit, fail_fast), launch, self._access, closeables)

    def _prepared(self, requests: Sequence[CopyRequest]) -> Launch:
        try:
            require_space(requests)
            return self._launch()
        except TransferError as error:
            failed = [error.request] if error.request is not None else requests
            raise CopyFailed([as_error_of(each, error, NAME) for each in failed]) from error

    def close(self) -> None:
        """Release the client for clean-up; there is no process between copies."""
        self._access.close()

    def __repr__(self) -> str:
        return f"S5cmdFileSystem({os.fspath(self.options.path or 'installed')!r})"
