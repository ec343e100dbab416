"""The s5cmd backend against the contract, and what only it must do."""

from __future__ import annotations

from typing import ClassVar

from statelift.backends.options import Configuration
from statelift.s5cmd_integration import S5cmdFileSystem

from .contract import Contract, Traits


class TestS5cmd(Contract):
    traits = Traits(
        pairs=frozenset({"download", "upload", "remote"}),
        methods=frozenset({"s5cmd", "server-side"}),
        ranges=frozenset(),
        newline=False,
    )
    options: ClassVar[dict[str, object]] = {}

    def make(self, configuration: Configuration) -> S5cmdFileSystem:
        return S5cmdFileSystem(configuration)
