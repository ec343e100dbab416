"""The servers that all other tests lean on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from statelift.backends.options import Configuration
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server

from .servers.moto import MotoServer
from .servers.proxy import SlowProxy, slow_proxy
from .servers.tls import Certificates


@pytest.mark.parametrize("name", ["configuration", "tls_configuration"])
def test_serves_the_same_buckets_with_and_without_tls(
    request: pytest.FixtureRequest, name: str, s3_root: Path, bucket: str
) -> None:
    access = S3Access(request.getfixturevalue(name).of(S3Options))
    access.client().put_object(Bucket=bucket, Key="a/b", Body=b"bytes")
    assert (s3_root / bucket / "a" / "b").read_bytes() == b"bytes"
    assert access.client().get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"bytes"
    access.close()


def test_refuses_a_wrong_secret(s3: S3Server, bucket: str) -> None:
    from botocore.exceptions import ClientError

    access = S3Access(Configuration({**s3.options, "s3.secret-key": "wrong"}, environ={}).of(S3Options))
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        access.client().list_objects_v2(Bucket=bucket)
    access.close()


def test_moto_honours_conditions(moto_s3: MotoServer, moto_configuration: Configuration, moto_bucket: str) -> None:
    from botocore.exceptions import ClientError

    access = S3Access(moto_configuration.of(S3Options))
    client = access.client()
    client.put_object(Bucket=moto_bucket, Key="k", Body=b"1")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.get_object(Bucket=moto_bucket, Key="k", IfMatch='"0"')
    access.close()
    assert moto_s3.endpoint.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("name", ["s3", "tls_s3"])
def test_the_proxy_slows_and_holds(
    request: pytest.FixtureRequest, name: str, certificates: Certificates, s3_root: Path, bucket: str
) -> None:
    server: S3Server = request.getfixturevalue(name)
    (s3_root / bucket / "key").write_bytes(bytes(1 << 20))
    with SlowProxy(server.endpoint, rate=4 << 20) as proxy:
        options = {**server.options, "s3.endpoint": proxy.endpoint, "s3.ca-bundle": certificates.authority}
        access = S3Access(Configuration(options, environ={}).of(S3Options))
        started = time.monotonic()
        assert len(access.client().get_object(Bucket=bucket, Key="key")["Body"].read()) == 1 << 20
        assert time.monotonic() - started > 0.2
        assert proxy.moved > 1 << 20
        access.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "slow-proxy"]


def test_a_slow_endpoint_can_be_given_to_any_client(s3: S3Server, bucket: str) -> None:
    with slow_proxy(s3.endpoint, rate=1 << 20) as endpoint:
        access = S3Access(Configuration({**s3.options, "s3.endpoint": endpoint}, environ={}).of(S3Options))
        access.client().put_object(Bucket=bucket, Key="key", Body=b"bytes")
        access.close()
    assert (s3.root / bucket / "key").read_bytes() == b"bytes"
