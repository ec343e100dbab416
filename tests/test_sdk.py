"""The sdk backend: the contract for both managers, and the scars of s3transfer and the CRT."""

from __future__ import annotations

from typing import ClassVar

from statelift.backends.options import Configuration
from statelift.backends.sdk import SdkFileSystem

from .contract import Contract, Traits


class TestSdk(Contract):
    traits = Traits(
        pairs=frozenset({"download", "upload", "remote"}),
        methods=frozenset({"sdk", "server-side"}),
        ranges=frozenset({"download"}),
    )

    def make(self, configuration: Configuration) -> SdkFileSystem:
        return SdkFileSystem(configuration)


class TestCrt(Contract):
    traits = Traits(pairs=frozenset({"download", "upload"}), methods=frozenset({"sdk"}), ranges=frozenset({"download"}))
    # rclone begins multipart uploads in a way that the CRT does not understand (see below).
    options: ClassVar[dict[str, object]] = {"sdk.client": "crt", "sdk.part-size": "32mb"}

    def make(self, configuration: Configuration) -> SdkFileSystem:
        return SdkFileSystem(configuration)
