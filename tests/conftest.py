"""Fixtures for every test: real S3 servers on loopback, fresh buckets, a clean environment."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from statelift.backends.options import Configuration
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.backends.transfer_options import TransferOptions  # noqa: F401  declares transfer.*
from statelift.transfer.demo.s3_server import S3Server, serve_s3

from .servers.moto import MotoServer, serve_moto
from .servers.tls import Certificates, make_certificates

pytest.register_assert_rewrite("tests.contract")

_AMBIENT = ("AWS_", "STATELIFT_", "S3_", "RCLONE_")
_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, endpoint or proxy of the machine's own reaches a test."""
    for name in list(os.environ):
        if name.startswith(_AMBIENT) or name.upper() in _PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture(scope="session")
def s3_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the S3 servers: every folder in it is a bucket, every file an object."""
    return tmp_path_factory.mktemp("s3") / "buckets"


@pytest.fixture(scope="session")
def s3(s3_root: Path) -> Iterator[S3Server]:
    """A real S3 server over HTTP that checks signatures, with an empty bucket ``state``."""
    with serve_s3(s3_root, buckets=["state"]) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def tls_s3(s3_root: Path, certificates: Certificates) -> Iterator[S3Server]:
    """The same buckets over HTTPS, with a certificate of a private authority."""
    with serve_s3(s3_root, buckets=["state"], certificate=certificates.server) as server:
        yield server


@pytest.fixture(scope="session")
def moto_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """moto's S3 server, for what rclone has not; it checks no signatures."""
    with serve_moto(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


@pytest.fixture
def configuration(s3: S3Server) -> Configuration:
    """Reaches `s3`. ``configuration.with_arguments({...})`` changes it."""
    return Configuration(s3.options, environ={})


@pytest.fixture
def tls_configuration(tls_s3: S3Server, certificates: Certificates) -> Configuration:
    """Reaches `tls_s3`, trusting its authority by ``s3.ca-bundle``."""
    return Configuration({**tls_s3.options, "s3.ca-bundle": certificates.authority}, environ={})


@pytest.fixture
def moto_configuration(moto_s3: MotoServer) -> Configuration:
    """Reaches `moto_s3`."""
    return Configuration(moto_s3.options, environ={})


@pytest.fixture
def bucket(s3_root: Path) -> Iterator[str]:
    """Name of a fresh bucket on `s3` and `tls_s3`; its objects are the files below ``s3.root / bucket``."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    (s3_root / name).mkdir(parents=True)
    yield name
    shutil.rmtree(s3_root / name, ignore_errors=True)


@pytest.fixture
def moto_bucket(moto_configuration: Configuration) -> Iterator[str]:
    """Name of a fresh bucket on `moto_s3`."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    access = S3Access(moto_configuration.of(S3Options))
    client = access.client()
    client.create_bucket(Bucket=name)
    yield name
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
        for each in page.get("Contents", ()):
            client.delete_object(Bucket=name, Key=each["Key"])
    client.delete_bucket(Bucket=name)
    access.close()
