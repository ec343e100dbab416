"""Fixtures of the wire backend's fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statelift.transfer.demo.s3_server import S3Server

from ..servers.tls import Certificates
from .kit import Kit, serving


@pytest.fixture(params=["http", "https"])
def kit(request: pytest.FixtureRequest, s3: S3Server, certificates: Certificates, tmp_path: Path) -> Iterator[Kit]:
    """Copies through a fault server over HTTP, and over HTTPS."""
    trusted = certificates if request.param == "https" else None
    with serving(s3, tmp_path / "state", trusted) as kit:
        yield kit
