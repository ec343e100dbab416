"""Where the files of a contract test lie, and the pairs of places that a backend copies between."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from statelift.backends.landing import STAGING_PREFIX
from statelift.backends.request import CopyRequest

MIB = 1 << 20


def make_bytes(size: int, seed: int = 0) -> bytes:
    """Bytes that no two seeds share and that do not compress."""
    return random.Random(f"{seed}/{size}").randbytes(size)


class Place(Protocol):
    """Files by name, seen past the backend that is tested."""

    def uri(self, name: str) -> str: ...

    def put(self, name: str, data: bytes) -> str:
        """Make a file; returns its URI."""
        ...

    def get(self, name: str) -> bytes | None:
        """A file's bytes, None where there is no such file."""
        ...

    def names(self) -> set[str]:
        """Every file that a reader would find, staged ones left out."""
        ...


@dataclass(frozen=True)
class LocalPlace:
    """A directory on the local disk."""

    directory: Path

    def uri(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def put(self, name: str, data: bytes) -> str:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return self.uri(name)

    def get(self, name: str) -> bytes | None:
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def names(self) -> set[str]:
        return {name for name in self._files() if STAGING_PREFIX not in name}

    def staged(self) -> list[str]:
        """What staging left, files and directories."""
        found = [os.path.join(top, name) for top, below, files in os.walk(self.directory) for name in below + files]
        return sorted(path for path in found if STAGING_PREFIX in os.path.relpath(path, self.directory))

    def _files(self) -> set[str]:
        found = (os.path.join(top, name) for top, _below, files in os.walk(self.directory) for name in files)
        return {os.path.relpath(path, self.directory) for path in found}


@dataclass(frozen=True)
class BucketPlace(LocalPlace):
    """A bucket of an S3 server whose objects are files of a directory."""

    def uri(self, name: str) -> str:
        return f"s3://{self.directory.name}/{name}"


@dataclass(frozen=True)
class Pair:
    """From where to where; ``kind`` is download, upload, remote or local."""

    kind: str
    source: Place
    destination: Place

    def put(self, name: str, data: bytes, *, to: str | None = None, **known: Any) -> CopyRequest:
        """Make a source file and the request that copies it."""
        self.source.put(name, data)
        return self.request(name, to=to, **known)

    def request(self, name: str, *, to: str | None = None, **known: Any) -> CopyRequest:
        return CopyRequest(self.source.uri(name), self.destination.uri(to or name), **known)
