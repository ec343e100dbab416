"""The stream backend: the contract, and the scars of s3fs and fsspec that it keeps from its users."""

from __future__ import annotations

from statelift.backends.options import Configuration
from statelift.backends.stream import StreamFileSystem

from .contract import Contract, Traits

PAIRS = frozenset({"download", "upload", "remote", "local"})


class TestStream(Contract):
    traits = Traits(pairs=PAIRS, methods=frozenset({"stream"}), ranges=PAIRS)

    def make(self, configuration: Configuration) -> StreamFileSystem:
        return StreamFileSystem(configuration)
