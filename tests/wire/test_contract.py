"""The wire backend against the suite that every backend passes: over HTTP, over TLS, and with each mode of its own."""

from __future__ import annotations

from typing import ClassVar

import pytest

from statelift.backends.options import Configuration
from statelift.backends.wire.file_system import WireFileSystem

from ..contract import Contract, Traits

TRAITS = Traits(
    pairs=frozenset({"download", "upload", "remote"}),
    methods=frozenset({"wire", "server-side"}),
)


class TestWire(Contract):
    traits = TRAITS

    def make(self, configuration: Configuration) -> WireFileSystem:
        return WireFileSystem(configuration)


@pytest.mark.slow
class TestWireOverTls(TestWire):
    @pytest.fixture
    def configuration(self, tls_configuration: Configuration) -> Configuration:
        return tls_configuration


@pytest.mark.slow
class TestWireWithSmallParts(TestWire):
    options: ClassVar[dict[str, object]] = {
        "wire.part-size": "5mb",
        "s3.connection.max": 3,
        "wire.sign-payload": True,
        "wire.buffer-size": "64kb",
        "transfer.fsync": True,
    }
