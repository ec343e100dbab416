"""What decides and moves: file systems, downloader, uploader, checkpoints, keyed state, Spark, command line."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..backends.options import declared_by

if TYPE_CHECKING:
    from ..backends.closeables import CloseableRegistry
    from ..backends.options import Configuration
    from ..backends.report import CopiedFile, CopyReport
    from ..backends.request import CopyRequest
    from .checkpoint.layout import CheckpointLocation
    from .checkpoint.metadata import CheckpointMetadata
    from .checkpoint.store import CheckpointStore
    from .downloader import Download, StateDownloader
    from .file_systems import FileSystems
    from .uploader import StateUploader, Upload

#: Where each public name lives: a task that restores must not wait for what it does not use.
_HOMES = {
    "CheckpointLocation": ".checkpoint.layout",
    "CheckpointMetadata": ".checkpoint.metadata",
    "CheckpointStore": ".checkpoint.store",
    "CloseableRegistry": "..backends.closeables",
    "Configuration": "..backends.options",
    "CopiedFile": "..backends.report",
    "CopyReport": "..backends.report",
    "CopyRequest": "..backends.request",
    "Download": ".downloader",
    "FileSystems": ".file_systems",
    "StateDownloader": ".downloader",
    "StateUploader": ".uploader",
    "Upload": ".uploader",
}

__all__ = [
    "CheckpointLocation",
    "CheckpointMetadata",
    "CheckpointStore",
    "CloseableRegistry",
    "Configuration",
    "CopiedFile",
    "CopyReport",
    "CopyRequest",
    "Download",
    "FileSystems",
    "StateDownloader",
    "StateUploader",
    "Upload",
]


def __getattr__(name: str) -> object:
    """Import a public name's module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _load_declarations() -> None:
    from .file_systems import load_declarations

    load_declarations()


# A key of any backend is known as soon as this package is.
declared_by(_load_declarations)
