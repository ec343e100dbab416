"""What decides and moves: file systems, downloader, uploader, checkpoints, keyed state, Spark, command line."""

from __future__ import annotations

from ..backends.closeables import CloseableRegistry
from ..backends.options import Configuration
from ..backends.report import CopiedFile, CopyReport
from ..backends.request import CopyRequest
from .checkpoint.layout import CheckpointLocation
from .checkpoint.metadata import CheckpointMetadata
from .checkpoint.store import CheckpointStore
from .downloader import Download, StateDownloader
from .file_systems import FileSystems, load_declarations
from .uploader import StateUploader, Upload

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

# A key of any backend is known as soon as this package is.
load_declarations()
