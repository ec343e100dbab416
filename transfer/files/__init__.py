"""The file manager: which physical file stands behind each file of a database, and who may delete it.

``files.view`` shows it as an fsspec file system.
"""

from __future__ import annotations

from .manager import FileManager
from .mapping import FileMapping, PhysicalFile
from .ownership import Ownership, ownership_of_new_file

__all__ = [
    "FileManager",
    "FileMapping",
    "Ownership",
    "PhysicalFile",
    "ownership_of_new_file",
]
