"""The words of copying, the interface `PathsCopyingFileSystem`, and every in-process implementation of it.

Implementations are imported by name (``statelift.backends.local`` and so on), since some need
packages that only their users have installed.
"""

from .batch import BatchPolicy, run_batch
from .closeables import CloseableRegistry
from .errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    CheckpointError,
    CheckpointNotFound,
    ConnectionFailed,
    CopyCancelled,
    CopyFailed,
    DeadlineExceeded,
    DestinationError,
    IntegrityError,
    NoSpace,
    OptionError,
    SourceChanged,
    SourceNotFound,
    StalledTransfer,
    Throttled,
    TransferError,
    UnsupportedCopy,
    UsageError,
)
from .options import Configuration, OptionGroup, option
from .paths_copying import PathsCopyingFileSystem
from .report import CopiedFile, CopyReport
from .request import CopyRequest, Location, locate

__all__ = [
    "AccessDenied",
    "BackendError",
    "BackendUnavailable",
    "BatchPolicy",
    "CheckpointError",
    "CheckpointNotFound",
    "CloseableRegistry",
    "Configuration",
    "ConnectionFailed",
    "CopiedFile",
    "CopyCancelled",
    "CopyFailed",
    "CopyReport",
    "CopyRequest",
    "DeadlineExceeded",
    "DestinationError",
    "IntegrityError",
    "Location",
    "NoSpace",
    "OptionError",
    "OptionGroup",
    "PathsCopyingFileSystem",
    "SourceChanged",
    "SourceNotFound",
    "StalledTransfer",
    "Throttled",
    "TransferError",
    "UnsupportedCopy",
    "UsageError",
    "locate",
    "option",
    "run_batch",
]
