"""Where a bucket's requests go: scheme, host, port, path; addressing styles, proxies, regions."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from ..errors import OptionError
from ..s3_access import S3Access
from .signing import encode_path

_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_DOTTED = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; ``authorization`` is the value of its header."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Server:
    """What a connection is made to; connections to equal servers are interchangeable."""

    host: str
    port: int
    tls: bool
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """Host and port for a ``Host`` header: the scheme's own port is left out, IPv6 stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        """What the socket connects to."""
        return (self.proxy.host, self.proxy.port) if self.proxy else (self.host, self.port)

    @property
    def tunnels(self) -> bool:
        return self.proxy is not None and self.tls


@dataclass(frozen=True, slots=True)
class Address:
    """How requests for one bucket are addressed: see `path`."""

    server: Server
    prefix: str
    region: str

    def path(self, key: str) -> str:
        """Path of a key (or of the bucket, for an empty one), encoded."""
        return f"{self.prefix}/{encode_path(key)}"


class Endpoints:
    """Addresses of buckets; remembers where a store redirected one to, once per bucket."""

    def __init__(self, access: S3Access) -> None:
        self._options = access.options
        self._region = access.region
        self._addresses: dict[str, Address] = {}
        self._redirected: set[str] = set()

    @property
    def uses_tls(self) -> bool:
        return not (self._options.endpoint or "").startswith("http://")

    def of(self, bucket: str) -> Address:
        """The bucket's address.

        Raises:
            OptionError: the endpoint's URL or the bucket's name cannot be used.
        """
        if bucket not in self._addresses:
            self._addresses[bucket] = self._address(bucket, self._region)
        return self._addresses[bucket]

    def redirect(self, bucket: str, region: str | None, location: str | None) -> bool:
        """Follow a redirect. Returns False where it says nothing new or this bucket's was followed before."""
        if bucket in self._redirected:
            return False
        before = self.of(bucket)
        after = before
        if region and _REGION.fullmatch(region):
            after = self._address(bucket, region)
        elif location:
            after = self._moved(before, location)
        if after == before:
            return False
        self._redirected.add(bucket)
        self._addresses[bucket] = after
        return True

    def _moved(self, before: Address, location: str) -> Address:
        parts = urlsplit(location)
        # Never from TLS to clear text, and never with a path that is not this bucket's.
        if not parts.hostname or parts.scheme not in _PORTS or (before.server.tls and parts.scheme != "https"):
            return before
        server = _server(parts.scheme, parts.hostname, parts.port)
        return replace(before, server=server)

    def _address(self, bucket: str, region: str) -> Address:
        if not bucket:
            raise OptionError("an S3 URI needs a bucket: s3://bucket/key")
        endpoint = self._options.endpoint
        url = endpoint or f"https://s3.{region}.{_suffix(region)}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise OptionError(f"s3.endpoint = {url!r}: {error}") from error
        if not host:
            raise OptionError(f"s3.endpoint = {url!r}: no host")
        prefix = parts.path.rstrip("/")
        if self._is_path_style(bucket, host, tls=parts.scheme == "https"):
            prefix = f"{prefix}/{encode_path(bucket)}"
        else:
            host = f"{bucket}.{host}"
        return Address(_server(parts.scheme, host, port), prefix, region)

    def _is_path_style(self, bucket: str, host: str, *, tls: bool) -> bool:
        if self._options.uses_path_style or ":" in host or host.replace(".", "").isdigit():
            return True
        # A wildcard certificate covers one label only, so a dotted bucket has no valid host under TLS.
        return not (_LABEL if tls else _DOTTED).fullmatch(bucket)


def _suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _server(scheme: str, host: str, port: int | None) -> Server:
    return Server(host, port or _PORTS[scheme], scheme == "https", _proxy(scheme, host))


def _proxy(scheme: str, host: str) -> Proxy | None:
    """The proxy of ``HTTPS_PROXY`` or ``HTTP_PROXY`` unless ``NO_PROXY`` names the host."""
    if not any(name.lower() == f"{scheme}_proxy" for name in os.environ):
        return None
    # An import of 20 ms that few need.
    import urllib.request

    url = urllib.request.getproxies_environment().get(scheme)
    if not url or urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise OptionError(f"{scheme.upper()}_PROXY: only http:// proxies are supported")
    authorization = None
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(user.encode()).decode()
    return Proxy(parts.hostname, parts.port or 80, authorization)
