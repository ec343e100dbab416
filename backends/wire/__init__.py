"""An S3 engine in this process: plain sockets, one event loop, no work per byte that the kernel can do."""

from __future__ import annotations

from .file_system import WireFileSystem

__all__ = ["WireFileSystem"]
