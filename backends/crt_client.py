"""The Common Runtime's S3 client (awscrt) for any endpoint, one per process.

It is made when the first file is copied, never before a fork: in a forked child the parent's
would wait for threads that do not exist. boto3's own way to the CRT ignores the endpoint and
takes a host-wide lock; here requests are serialised for the configured endpoint, and no lock is
taken.
"""

from __future__ import annotations

import inspect
import os
import socket
import ssl
import threading
from typing import Any
from urllib.parse import SplitResult, urlsplit

from .s3_access import S3Access
from .s3_errors import translating

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
