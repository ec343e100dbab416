"""Copies by an s5cmd child process: fast, native, and watched."""

from __future__ import annotations

from .file_system import S5cmdFileSystem
from .options import S5cmdOptions

__all__ = ["S5cmdFileSystem", "S5cmdOptions"]
