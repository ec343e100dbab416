"""The S3 servers that benchmarks run against, pinned to the CPU that contenders may not use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..transfer.demo.s3_server import serve_s3
from .data import Object, Shape, make_objects
from .light_peer import Traffic
from .light_server import start_light

REGION = "us-east-1"
#: A distant store: seconds to the first byte, bytes per second of one connection.
SLOW_DELAY = 0.03
SLOW_RATE = 100e6
BUCKET = "bench"


@dataclass(frozen=True)
class Server:
    """Where a server listens, and the environment that lets any client reach it.

    Args:
        root: directory whose folder `BUCKET` holds the objects as files.
        authority: PEM file that clients must trust, for HTTPS.
        traffic: bytes that its clients received and sent so far; only the light server counts them.
        more: further variables for the clients.
    """

    name: str
    endpoint: str
    root: Path
    access_key: str
    secret_key: str = field(repr=False)
    authority: Path | None = None
    keeps_files: bool = True
    traffic: Callable[[], Traffic] = Traffic
    more: Mapping[str, str] = field(default_factory=dict)

    def objects(self, shape: Shape) -> list[Object]:
        """The shape's objects in this server's bucket, made on first use."""
        return _objects(self.bucket, shape)

    @property
    def bucket(self) -> Path:
        return self.root / BUCKET

    def environment(self) -> dict[str, str]:
        """Variables for s5cmd, boto3, aws, obstore, rclone and this project alike; nothing ambient."""
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "LC_ALL": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            # Newer SDKs add checksum trailers that stores other than AWS refuse (boto3 #4392).
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_CONFIG_BENCH_TYPE": "s3",
            "RCLONE_CONFIG_BENCH_PROVIDER": "Other",
            "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID": self.access_key,
            "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY": self.secret_key,
            "RCLONE_CONFIG_BENCH_REGION": REGION,
            "RCLONE_CONFIG_BENCH_ENDPOINT": self.endpoint,
        }
        if self.authority:
            found["AWS_CA_BUNDLE"] = found["RCLONE_CA_CERT"] = str(self.authority)
        return {**found, **self.more}


@cache
def _objects(bucket: Path, shape: Shape) -> list[Object]:
    return make_objects(bucket, shape)


@dataclass(frozen=True)
class Servers:
    """Starts servers over one directory of objects.

    Args:
        cpu: the one that they are pinned to.
    """

    root: Path
    cpu: int | None

    @contextmanager
    def serving(self, scheme: str = "http", *, slow: bool = False, keeping: bool = False) -> Iterator[Server]:
        """A server for as long as the block runs.

        Args:
            slow: 30 ms to the first byte, 100 MB/s on each connection.
            keeping: it must store what is uploaded as files, so that they can be verified.
        """
        tls = self.root.parent / "tls" if scheme == "https" else None
        made = rclone_server(self.root, cpu=self.cpu, tls=tls) if keeping else self._light(tls, slow=slow)
        with made as server:
            yield server

    @contextmanager
    def _light(self, tls: Path | None, *, slow: bool) -> Iterator[Server]:
        certificates = make_certificates(tls) if tls else None
        pair = (certificates.chain, certificates.key) if certificates else None
        (self.root / BUCKET).mkdir(parents=True, exist_ok=True)
        delay, rate = (SLOW_DELAY, SLOW_RATE) if slow else (0.0, 0.0)
        cpus = None if self.cpu is None else {self.cpu}
        with start_light(self.root, cpus=cpus, certificate=pair, delay=delay, rate=rate) as light:
            authority = certificates.authority if certificates else None
            about = ("light", light.endpoint, self.root, "bench", "bench-secret", authority)
            yield Server(*about, keeps_files=False, traffic=light.traffic)


@contextmanager
def rclone_server(root: Path, *, cpu: int | None, tls: Path | None = None) -> Iterator[Server]:
    """``rclone serve s3``: a whole S3 server that checks signatures, heavier than the light one.

    Args:
        tls: directory for a fresh certificate; turns HTTPS on.
    """
    certificates = make_certificates(tls) if tls else None
    pair = (certificates.chain, certificates.key) if certificates else None
    with serve_s3(root, buckets=[BUCKET], certificate=pair, cpus=None if cpu is None else {cpu}) as server:
        authority = certificates.authority if certificates else None
        name = "rclone serve s3"
        yield Server(name, server.endpoint, root, server.access_key, server.secret_key, authority)


@dataclass(frozen=True)
class Certificates:
    """PEM files of a private authority and of a server on loopback."""

    authority: Path
    chain: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    import trustme

    directory.mkdir(parents=True, exist_ok=True)
    made = Certificates(directory / "authority.pem", directory / "chain.pem", directory / "key.pem")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(made.authority)
    issued.private_key_pem.write_to_path(made.key)
    for number, pem in enumerate(issued.cert_chain_pems):
        pem.write_to_path(made.chain, append=number > 0)
    return made
