"""Every error that statelift raises, in one tree.

::

    TransferError(Exception)                    .request .backend .remedy .transient .shared
     ├ OptionError, ValueError                  an option's key or value is wrong
     ├ UsageError, ValueError                   an argument is out of range: subtask, parallelism, a request's line
     ├ UnsupportedCopy                          this backend cannot copy this pair
     ├ BackendUnavailable, RuntimeError         a program or package is missing or does not run
     ├ SourceNotFound, FileNotFoundError        no such bucket, key or file
     ├ AccessDenied, PermissionError            wrong, missing or expired credentials; a forbidden object
     ├ DestinationError, OSError                the destination cannot be written: read-only, a directory
     │  └ NoSpace                               the disk is full
     ├ IntegrityError, ValueError               size or checksum differs from what was promised
     │  └ SourceChanged                         the source was overwritten while it was read
     ├ ConnectionFailed, ConnectionError        refused, reset, TLS or name resolution failed
     ├ StalledTransfer, TimeoutError            no byte moved for too long
     │  └ DeadlineExceeded                      the batch's deadline passed
     ├ BackendError, RuntimeError               any other failure of a store or a child process
     │  └ Throttled                             the store asked to slow down
     ├ CheckpointError, ValueError              a checkpoint's metadata is missing parts, damaged or unknown
     │  └ CheckpointNotFound, FileNotFoundError no ``_metadata``: the checkpoint does not exist
     └ CopyFailed, RuntimeError                 a batch: .errors, one per failed request, and .done
    CopyCancelled(BaseException)                the registry was closed; .reason and .done

``transient`` tells the same backend to try again; ``shared`` tells that every other way of
copying this file would fail alike, so that a fallback is pointless.

All of them pickle: Spark sends them from executors to the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .report import CopiedFile
    from .request import CopyRequest


def _rebuild(cls: type[BaseException], message: str, state: dict[str, Any]) -> BaseException:
    # By name: where ValueError and OSError are both bases, `cls.__new__` finds the one that refuses.
    maker = OSError if issubclass(cls, OSError) else cls
    error: BaseException = maker.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class TransferError(Exception):
    """Base of the tree.

    Args:
        message: names the thing and the cause, in one line.
        remedy: what the user can do about it.
        request: the copy request that failed, where there is one.
        backend: name of the backend that failed.
    """

    transient: bool = False
    shared: bool = False

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        request: CopyRequest | None = None,
        backend: str | None = None,
        transient: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.request = request
        self.backend = backend
        if transient is not None:
            self.transient = transient

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{message} ({self.remedy})" if self.remedy else message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], dict(self.__dict__))


class OptionError(TransferError, ValueError):
    shared = True


class UsageError(TransferError, ValueError):
    shared = True


class UnsupportedCopy(TransferError):
    pass


class BackendUnavailable(TransferError, RuntimeError):
    pass


class SourceNotFound(TransferError, FileNotFoundError):
    shared = True


class AccessDenied(TransferError, PermissionError):
    shared = True


class DestinationError(TransferError, OSError):
    shared = True


class NoSpace(DestinationError):
    pass


class IntegrityError(TransferError, ValueError):
    pass


class SourceChanged(IntegrityError):
    shared = True


class ConnectionFailed(TransferError, ConnectionError):
    transient = True


class StalledTransfer(TransferError, TimeoutError):
    transient = True


class DeadlineExceeded(StalledTransfer):
    transient = False
    shared = True


class BackendError(TransferError, RuntimeError):
    pass


class Throttled(BackendError):
    transient = True


class CheckpointError(TransferError, ValueError):
    shared = True


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    pass


class CopyFailed(TransferError, RuntimeError):
    """A batch of which at least one request failed.

    Attributes:
        errors: one error per failed request, the root cause first; each has its ``.request``.
        done: the files that were copied, verified and published all the same.
    """

    _SHOWN: ClassVar[int] = 5

    def __init__(self, errors: Sequence[TransferError], done: Sequence[CopiedFile] = ()) -> None:
        self.errors = tuple(errors)
        self.done = tuple(done)
        super().__init__(self._summary(), backend=errors[0].backend if errors else None)
        self.transient = bool(errors) and all(error.transient for error in errors)
        self.shared = any(error.shared for error in errors)

    def distinct(self) -> list[TransferError]:
        """The errors without repetitions of one kind and cause, in order."""
        seen: dict[tuple[type, str], TransferError] = {}
        for error in self.errors:
            seen.setdefault((type(error), str(error)), error)
        return list(seen.values())

    def _summary(self) -> str:
        distinct = self.distinct()
        if len(distinct) == 1:
            count = len(self.errors)
            return str(distinct[0]) if count == 1 else f"{count} copies failed: {distinct[0]}"
        shown = "; ".join(f"[{type(e).__name__}] {e}" for e in distinct[: self._SHOWN])
        more = f"; and {len(distinct) - self._SHOWN} more" if len(distinct) > self._SHOWN else ""
        return f"{len(self.errors)} copies failed with {len(distinct)} distinct errors: {shown}{more}"


class CopyCancelled(BaseException):
    """The copy's registry was closed. Not an ``Exception``: no fallback may swallow it.

    Attributes:
        done: files that a batch had copied, verified and published before.
    """

    def __init__(self, reason: str = "the copy was cancelled", done: Sequence[CopiedFile] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.done = tuple(done)
