"""s3transfer's manager on the AWS Common Runtime (awscrt): native threads, native file writes.

The CRT's client is made when the first file is copied, never before a fork, and belongs to one
process: in a forked child the parent's would wait for threads that do not exist. boto3's own way
to the CRT ignores the endpoint and takes a host-wide lock; here requests are serialised for the
configured endpoint, and no lock is taken.
"""

from __future__ import annotations

import inspect
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .checksums import crc64nvme_of_descriptor, to_base64
from .closeables import CloseableRegistry
from .crt_errors import translating_crt
from .disk import reading
from .errors import CopyCancelled, IntegrityError, SourceChanged, StalledTransfer, UnsupportedCopy
from .landing import Landing, StagingArea
from .request import CopyRequest, Location, locate
from .s3_access import S3Access
from .s3_errors import checksum_of, translating
from .sdk_classic import Advance, Copied, require_unchanged, s3_object
from .sdk_client import Seen, bare
from .sdk_files import compare
from .tcp_counters import bytes_moved

_LOOK = 0.2
#: Seconds that closing waits for the CRT's threads and connections to end.
_CLOSE = 5.0
#: What a parent process made: in its forked children never used and never finalised.
_INHERITED: list[Any] = []


class CrtClient:
    """The CRT's S3 client and the serialiser of its requests, one pair per process.

    Args:
        throughput: Gbit/s to aim at.
        memory: bytes of buffers.
        requests: connections at most.
    """

    def __init__(self, access: S3Access, *, part_size: int, throughput: float, memory: int, requests: int) -> None:
        self._access = access
        self.part_size = part_size
        self._throughput = throughput
        self._memory = memory
        self._requests = requests
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._client: Any = None
        self._serializer: Any = None

    def serializer(self) -> Any:
        """Of this process."""
        self._open()
        return self._serializer

    def make_request(self, **arguments: Any) -> Any:
        """As the client's. The client itself is not handed out: whoever keeps it, if only in a
        traceback, keeps its threads and connections alive."""
        self._open()
        return self._client.make_request(**arguments)

    def _open(self) -> None:
        if self._pid != os.getpid():
            _INHERITED.append((self._client, self._serializer))
            self._reset()
        with self._lock:
            if self._client is None:
                self._require_trust()
                self._serializer = self._new_serializer()
                self._client = self._new_client()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            client, self._client, self._serializer = self._client, None, None
        if client is not None:
            ended = client.shutdown_event
            del client
            ended.wait(_CLOSE)

    @property
    def _endpoint(self) -> SplitResult:
        return urlsplit(self._access.options.endpoint or "https://s3.amazonaws.com")

    @property
    def port(self) -> int:
        """Of the endpoint's connections."""
        return self._endpoint.port or (80 if self._endpoint.scheme == "http" else 443)

    def _require_trust(self) -> None:
        """Shake hands with a configured endpoint once: the CRT answers a bad certificate after 10 to 30 s.

        (s2n-tls delays the news of a failed handshake, "blinding", and cannot be interrupted meanwhile.)
        """
        endpoint = self._access.options.endpoint
        if endpoint is None or self._endpoint.scheme == "http":
            return
        context = ssl.create_default_context(cafile=self._bundle())
        host, limit = self._endpoint.hostname, self._access.transfer.connect_timeout
        with (
            translating(endpoint),
            socket.create_connection((host, self.port), timeout=limit) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            pass

    def _bundle(self) -> str | None:
        return (
            str(self._access.options.ca_bundle or self._access.session().get_config_variable("ca_bundle") or "") or None
        )

    def _new_serializer(self) -> Any:
        from botocore.config import Config
        from s3transfer.crt import BotocoreCRTRequestSerializer

        options = self._access.options
        config = Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if options.uses_path_style else "virtual"},
        )
        given = {"region_name": self._access.region, "endpoint_url": options.endpoint, "config": config}
        return BotocoreCRTRequestSerializer(self._access.session(), {k: v for k, v in given.items() if v is not None})

    def _new_client(self) -> Any:
        from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
        from awscrt.s3 import S3Client, S3RequestTlsMode

        threads = EventLoopGroup(1)
        plain = (self._access.options.endpoint or "").startswith("http://")
        arguments: dict[str, Any] = {
            "bootstrap": ClientBootstrap(threads, DefaultHostResolver(threads)),
            "region": self._access.region,
            "tls_mode": S3RequestTlsMode.DISABLED if plain else S3RequestTlsMode.ENABLED,
            "tls_connection_options": None if plain else self._tls(),
            "credential_provider": self._credentials(),
            "part_size": self.part_size,
            "throughput_target_gbps": self._throughput,
            "memory_limit": self._memory,
            "max_active_connections_override": self._requests,
            "retry_config": self._retry(),
            "connect_timeout_ms": int(self._access.transfer.connect_timeout * 1000),
        }
        # Older releases of awscrt know fewer of them.
        known = inspect.signature(S3Client).parameters
        return S3Client(**{name: value for name, value in arguments.items() if name in known})

    def _tls(self) -> Any:
        from awscrt.io import ClientTlsContext, TlsContextOptions

        options = TlsContextOptions()
        if bundle := self._bundle():
            options.override_default_trust_store_from_path(ca_filepath=bundle)
        return ClientTlsContext(options).new_connection_options()

    def _credentials(self) -> Any:
        from awscrt.auth import AwsCredentials, AwsCredentialsProvider

        access = self._access
        if access.credentials() is None:
            return None

        def current() -> Any:
            now = access.credentials()
            return AwsCredentials(now.access_key, now.secret_key, now.token) if now else None

        return AwsCredentialsProvider.new_delegate(current)

    def _retry(self) -> Any:
        import awscrt.s3

        retries = self._access.transfer.retries
        if not hasattr(awscrt.s3, "S3RetryConfig"):
            return None
        if retries == 0:
            return awscrt.s3.S3RetryConfig(retry_mode=awscrt.s3.S3RetryMode.NONE)
        return awscrt.s3.S3RetryConfig(max_retries=retries, backoff_scale_factor_ms=200, max_backoff_secs=5)


class CrtEngine:
    """Copies single files of one batch, up and down."""

    def __init__(self, client: CrtClient, access: S3Access, registry: CloseableRegistry, staging: StagingArea) -> None:
        self._client = client
        self._access = access
        self._registry = registry
        self._staging = staging
        self._verify = access.transfer.verify
        self._life = _Life(client.port, access.transfer.stall_timeout)

    def close(self) -> None:
        """Nothing works on: every copy waits for its own end."""

    def copy(self, request: CopyRequest, advance: Advance) -> Copied:
        self._access.credentials()  # raises what the CRT would swallow
        source, destination = locate(request.source), locate(request.destination)
        if destination.is_local:
            return self._download(request, source, destination.key, advance)
        if request.is_range:
            raise UnsupportedCopy(f"sdk copies ranges only downwards: {request.source}", request=request)
        return self._upload(request, source.key, destination, advance)

    def _download(self, request: CopyRequest, source: Location, path: str, advance: Advance) -> Copied:
        landing = self._staging.land(path, request)
        try:
            seen = self._get(request, source, landing, advance)
            size = os.fstat(landing.fd).st_size
            _check_size(request, seen, size)
            crc = crc64nvme_of_descriptor(landing.fd) if self._verify else 0
            verified = compare(request, landing.fd, crc, seen) if self._verify else "size"
            if verified == "size" and size > self._client.part_size:
                self._require_version(request, source, seen)
            landing.publish(size)
        except BaseException:
            landing.discard()
            raise
        return Copied("sdk", size, verified, crc if self._verify else None)

    def _get(self, request: CopyRequest, source: Location, landing: Landing, advance: Advance) -> Seen:
        extra = {}
        if request.etag:
            extra["IfMatch"] = f'"{bare(request.etag)}"'
        if request.is_range:
            if request.expected == 0:
                return self._head(source, request)
            end = request.offset + request.length - 1 if request.length is not None else ""
            extra["Range"] = f"bytes={request.offset}-{end}"
        # A checksum of ours spares the CRT's search for the store's, which is a request more. It is
        # also how the CRT finds out that an object is empty: without it, it asks for a range and fails.
        known = request.has_checksum and bool(request.expected)
        transfer = _Transfer(self, request, advance, validate=self._verify and not known)
        headers = transfer.run("download", s3_object(source), landing.path, extra)
        return _seen(headers, request)

    def _head(self, location: Location, request: CopyRequest) -> Seen:
        with translating(request.source, request):
            answer: Any = self._access.client().head_object(**s3_object(location))  # type: ignore[attr-defined]
        return Seen(answer.get("ContentLength"), answer.get("ETag"))

    def _require_version(self, request: CopyRequest, source: Location, seen: Seen) -> None:
        """Not every store knows the If-Match that the CRT sends with each part."""
        now = self._head(source, request)
        if seen.etag and now.etag and bare(seen.etag) != bare(now.etag):
            raise SourceChanged(f"{request.source} was overwritten while it was read", request=request)

    def _upload(self, request: CopyRequest, path: str, destination: Location, advance: Advance) -> Copied:
        with reading(request.source, request), open(path, "rb") as file:
            before = os.fstat(file.fileno())
            if request.size is not None and request.size != before.st_size:
                message = f"{request.source} has {before.st_size} bytes instead of {request.size}"
                raise IntegrityError(message, request=request)
            crc = crc64nvme_of_descriptor(file.fileno()) if self._verify else 0
            verified = compare(request, file.fileno(), crc, None) if self._verify else "size"
        # The CRT leaves the payload unsigned: its checksum is what the store can check it by.
        extra = {**self._access.options.upload_arguments}
        if self._verify:
            extra["ChecksumCRC64NVME"] = to_base64(crc)
        transfer = _Transfer(self, request, advance, validate=False)
        try:
            headers = transfer.run("upload", s3_object(destination), path, extra)
        except UnsupportedCopy:
            self._abort_upload(destination)
            raise
        with reading(request.source, request):
            require_unchanged(request, before, os.stat(path))
        return Copied("sdk", before.st_size, verified, crc if self._verify else None, headers.get("etag"))

    def _abort_upload(self, destination: Location) -> None:
        """The CRT did not understand the answer that begins an upload: then it has begun, and its id is to be found."""
        client: Any = self._access.client()
        with suppress(Exception):
            found = client.list_multipart_uploads(Bucket=destination.bucket, Prefix=destination.key).get("Uploads", [])
            ours = [each for each in found if each["Key"] == destination.key]
            if len(ours) == 1:
                client.abort_multipart_upload(**s3_object(destination), UploadId=ours[0]["UploadId"])


class _Life:
    """Whether anything still moves: parts that arrive, or bytes on the connections between two parts."""

    def __init__(self, port: int, seconds: float) -> None:
        self.seconds = seconds
        self._port = port
        self._lock = threading.Lock()
        self._at = time.monotonic()
        self._looked = 0.0
        self._moved = -1

    def beat(self) -> None:
        self._at = time.monotonic()

    def stalled(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if now - self._looked > min(1.0, self.seconds / 4):
                self._looked = now
                moved = bytes_moved(self._port)
                if moved is not None and moved != self._moved:
                    self._moved, self._at = moved, now
            return now - self._at > self.seconds


class _Transfer:
    """One request of s3transfer's CRT manager."""

    def __init__(self, engine: CrtEngine, request: CopyRequest, advance: Advance, *, validate: bool) -> None:
        self._engine = engine
        self._request = request
        self._advance = advance
        self._validate = validate
        self._done = threading.Event()
        self._headers: dict[str, str] = {}
        self._moved = 0
        self._trouble: Exception | None = None

    def run(self, direction: str, where: dict[str, str], path: str, extra: dict[str, Any]) -> dict[str, str]:
        """Headers of the answer, by lower-case name; returns when the CRT has done with the file."""
        self._engine._registry.check()
        self._engine._life.beat()
        begin = getattr(_manager(self, self._engine._client.serializer()), direction)
        names = {"bucket": where["Bucket"], "key": where["Key"]}
        try:
            with self._translating(direction):
                future = begin(fileobj=path, **names, extra_args=extra, subscribers=[_subscriber(self)])
                self._await(future)
                self._finish(future)
        except BaseException:
            self._advance(-self._moved)
            raise
        return self._headers

    @contextmanager
    def _translating(self, direction: str) -> Iterator[None]:
        request = self._request
        local, uri = request.destination, request.source
        if direction == "upload":
            local, uri = uri, local
        try:
            with translating_crt(uri, local, request):
                yield
        except Exception:
            self._engine._registry.check()
            raise

    def _await(self, future: Any) -> None:
        try:
            with self._engine._registry.registered(future.cancel):
                while not self._done.wait(_LOOK):
                    if self._engine._life.stalled() and self._trouble is None:
                        seconds = self._engine._life.seconds
                        self._trouble = StalledTransfer(f"{self._request.source}: no byte moved for {seconds:g} s")
                    if self._trouble:
                        future.cancel()
        except CopyCancelled:
            # The registry was closed just before.
            future.cancel()
            self._done.wait()

    def _finish(self, future: Any) -> None:
        try:
            future.result()
        except Exception:
            if self._trouble is None:
                raise
        if self._trouble:
            raise self._trouble

    def progress(self, count: int) -> None:
        self._engine._life.beat()
        self._moved += count
        try:
            self._advance(count)
        except Exception as error:
            # This is a thread of the CRT, which has no use for it.
            self._trouble = error

    def make_request(self, **arguments: Any) -> Any:
        """What the manager takes for its client: keeps the answer's head, and chooses what is validated."""
        if not self._validate:
            arguments["checksum_config"] = None
        return self._engine._client.make_request(**arguments, on_headers=self._keep)

    def _keep(self, headers: list[tuple[str, str]], **_: Any) -> None:
        self._headers = {name.lower(): value for name, value in headers}


def _manager(transfer: _Transfer, serializer: Any) -> Any:
    """A manager of one transfer. It writes to a temporary name beside the staged file, within our directory."""
    from s3transfer.crt import CRTTransferManager

    manager: Any = CRTTransferManager(transfer, serializer)
    manager.ALLOWED_DOWNLOAD_ARGS = [*manager.ALLOWED_DOWNLOAD_ARGS, "Range", "IfMatch"]
    return manager


def _subscriber(transfer: _Transfer) -> Any:
    from s3transfer.subscribers import BaseSubscriber

    class Subscriber(BaseSubscriber):
        def on_progress(self, future: Any, bytes_transferred: int, **_: Any) -> None:  # noqa: ARG002
            transfer.progress(bytes_transferred)

        def on_done(self, future: Any, **_: Any) -> None:  # noqa: ARG002
            transfer._done.set()

    return Subscriber()


def _seen(headers: dict[str, str], request: CopyRequest) -> Seen:
    content_range = headers.get("content-range")
    total = (
        content_range.rpartition("/")[2] if content_range and request.is_range else headers.get("content-length", "")
    )
    size = int(total) if total.isdecimal() else None
    if request.is_range:
        start = (content_range or "").removeprefix("bytes ").partition("-")[0]
        if start != str(request.offset):
            raise IntegrityError(f"{request.source} answered with {content_range}", request=request)
        return Seen(size, headers.get("etag"))
    if headers.get("x-amz-checksum-type") not in {None, "FULL_OBJECT"}:
        return Seen(size, headers.get("etag"))
    return Seen(
        size,
        headers.get("etag"),
        checksum_of(headers.get("x-amz-checksum-crc64nvme"), 8),
        checksum_of(headers.get("x-amz-checksum-crc32c"), 4),
    )


def _check_size(request: CopyRequest, seen: Seen, size: int) -> None:
    """What landed must be what was promised, by the request and by the store."""
    if request.size is not None and seen.size is not None and request.size != seen.size:
        raise IntegrityError(f"{request.source} has {seen.size} bytes instead of {request.size}", request=request)
    of_store = seen.size - request.offset if seen.size is not None and request.length is None else None
    for expected in (request.expected, of_store):
        if expected is not None and size != expected:
            raise IntegrityError(f"{request.source} gave {size} bytes instead of {expected}", request=request)
