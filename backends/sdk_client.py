"""A botocore client that ends with a registry: its waits, its retries and its sockets.

botocore offers no way to interrupt a request: it sleeps between attempts and waits for a silent
server as long as its timeout. Events of the client (public) replace the sleeping, classes of
urllib3's pools give hold of the sockets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

from .batch import backoff
from .closeables import CloseableRegistry
from .errors import BackendError, CopyCancelled, SourceChanged, TransferError
from .s3_access import S3Access
from .s3_errors import checksum_of, store_error, translating

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 s (socket(7))
_PARAMS = "statelift"
_LATE = "the head of the answer did not arrive in time"
#: Seconds that requests which clean up may take after a cancel; ending the whole copy has one.
_GRACE = 0.6


@dataclass(frozen=True, slots=True)
class Seen:
    """What an answer said of an object as a whole."""

    size: int | None
    etag: str | None
    crc64nvme: int | None = None
    crc32c: int | None = None


class Ended(Exception):
    """The registry was closed. An ``Exception``, because s3transfer's tasks know no other."""


class InterruptibleClient:
    """A client for one batch.

    * A request begins only while the registry is open, but for those that abort an upload.
    * Transient failures are tried again ``retries`` times after a wait that the registry ends;
      one request that is told to slow down slows all.
    * Connections whose server does not finish the head of its answer within ``stall`` seconds
      are dropped by `check`, which is to be called now and then.
    * With the registry, all connections are dropped; again a little later, for requests that clean up.

    Attributes:
        client: botocore's.
        seen: what the last answer said of an object, by (bucket, key).
    """

    def __init__(self, access: S3Access, registry: CloseableRegistry, *, connections: int) -> None:
        self.seen: dict[tuple[str, str], Seen] = {}
        self._registry = registry
        self._retries = access.transfer.retries
        self._stall = access.transfer.stall_timeout
        self._resume_at = 0.0
        self._connections: set[Any] = set()
        self._sockets: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._registered = contextlib.ExitStack()
        client: Any = access.new_client(connections=connections, retries=0)
        self.client = client
        self._track(client._endpoint.http_session)
        self._register(self.client.meta.events, verify=access.transfer.verify)
        self._registered.enter_context(registry.registered(self._end))

    def _register(self, events: Any, *, verify: bool) -> None:
        events.register("before-parameter-build.s3", _remember_params)
        events.register("before-call.s3", self._begin)
        events.register("needs-retry.s3", self._again)
        events.register("after-call.s3", self._look)
        if verify:
            events.register("before-call.s3.GetObject", _ask_for_checksums)

    def close(self) -> None:
        self._registered.close()
        if self._timer:
            self._timer.cancel()
            self._timer.join()
        self.client.close()
        # s3transfer forgets the answers that it does not read to their end, and their connections with them.
        for connection in list(self._connections):
            connection.close()
        # An answer that could not be parsed keeps its socket for as long as somebody keeps the error.
        for each in list(self._sockets):
            if each.fileno() >= 0:
                os.close(each.detach())

    # Requests

    def _begin(self, model: Any, **_: Any) -> None:
        if model.name == "AbortMultipartUpload":
            return
        self._wait(max(0.0, self._resume_at - time.monotonic()))

    def _wait(self, seconds: float) -> None:
        try:
            self._registry.wait(seconds)
        except CopyCancelled as cancelled:
            raise Ended(cancelled.reason) from cancelled

    def _again(self, attempts: int, operation: Any, response: Any, caught_exception: Any, **_: Any) -> float | None:
        """Seconds to sleep before another attempt, None for none: botocore's protocol of ``needs-retry``."""
        if attempts > self._retries or self._registry.closed:
            return None
        error = _failure(operation.name, response, caught_exception)
        if error is None or not error.transient:
            return None
        pause = backoff(attempts - 1)
        if _slows_down(error):
            self._resume_at = max(self._resume_at, time.monotonic() + pause)
        self._wait(pause)
        return 0.0

    def _look(self, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        """Keep what an answer tells, and refuse bytes of another version: not every store knows If-Match."""
        params: dict[str, Any] = context.get(_PARAMS, {})
        if "Bucket" not in params or "Key" not in params or "Error" in parsed:
            return
        where = (params["Bucket"], params["Key"])
        if (trouble := _without_size(model.name, parsed)) is not None:
            _forget_body(parsed)
            raise trouble
        if model.name in {"GetObject", "HeadObject"}:
            self.seen[where] = seen = _seen(parsed)
            wanted = params.get("IfMatch")
            if wanted and seen.etag and bare(wanted) != bare(seen.etag):
                raise SourceChanged(f"s3://{where[0]}/{where[1]} was overwritten while it was read")
        elif model.name in {"PutObject", "CompleteMultipartUpload"}:
            self.seen[where] = Seen(None, parsed.get("ETag"))

    # Connections

    def _track(self, session: Any) -> None:
        from botocore.awsrequest import AWSHTTPConnectionPool, AWSHTTPSConnectionPool

        # urllib3's own way to have other connections (ConnectionCls), reached through a private
        # attribute. Without it copies still work, but end only with the read timeout.
        for scheme, pool in (("http", AWSHTTPConnectionPool), ("https", AWSHTTPSConnectionPool)):
            connection = _tracked(pool.ConnectionCls, self)
            with contextlib.suppress(AttributeError):
                session._pool_classes_by_scheme[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": connection})

    def check(self) -> None:
        """Drop the connections that have waited too long for the head of an answer."""
        now = time.monotonic()
        with self._lock:
            late = [each for each in self._connections if each.head_until is not None and each.head_until < now]
        for connection in late:
            _drop(connection)

    def sever(self) -> None:
        """Drop all connections, in mid-request if need be."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            _drop(connection)

    def _end(self) -> None:
        """Sever now, and again when what cleans up has had its time."""
        self.sever()
        self._timer = threading.Timer(_GRACE, self.sever)
        self._timer.name, self._timer.daemon = "statelift-sdk-end", True
        self._timer.start()


def _tracked(connection: Any, owner: InterruptibleClient) -> Any:
    class Tracked(connection):  # type: ignore[misc]
        head_until: float | None = None
        dropped = False

        def connect(self) -> None:
            super().connect()
            with owner._lock:
                owner._connections.add(self)
                owner._sockets.add(self.sock)

        def close(self) -> None:
            super().close()
            with owner._lock:
                owner._connections.discard(self)

        def getresponse(self) -> Any:
            self.head_until = time.monotonic() + owner._stall
            try:
                answer = super().getresponse()
            except Exception as error:
                if self.dropped:
                    raise TimeoutError(_LATE) from error
                raise
            finally:
                self.head_until = None
            if self.dropped:
                # http.client takes the end of the connection for the end of the head.
                answer.close()
                raise TimeoutError(_LATE)
            return answer

    return Tracked


def _drop(connection: Any) -> None:
    """Make every call on this connection's socket return; its own thread closes it."""
    connection.dropped = True
    found = connection.sock
    if isinstance(found, socket.socket):
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            # Not SSLSocket's shutdown, which takes the TLS state from under the thread that reads.
            socket.socket.shutdown(found, socket.SHUT_RDWR)


def bare(etag: str) -> str:
    """An ETag without quotes and weakness."""
    return etag.removeprefix("W/").strip('"')


def _remember_params(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    context[_PARAMS] = {name: params[name] for name in ("Bucket", "Key", "IfMatch") if name in params}


def _ask_for_checksums(params: dict[str, Any], **_: Any) -> None:
    # As a header, not as the parameter ChecksumMode: with that, botocore would check them too, at a higher price.
    params["headers"]["x-amz-checksum-mode"] = "ENABLED"


def _seen(parsed: dict[str, Any]) -> Seen:
    length = parsed.get("ContentLength")
    total = str(parsed.get("ContentRange", f"/{length}")).rpartition("/")[2]
    size = int(total) if total.isdecimal() else None
    if length != size or parsed.get("ChecksumType") not in {None, "FULL_OBJECT"}:
        return Seen(size, parsed.get("ETag"))
    return Seen(
        size,
        parsed.get("ETag"),
        checksum_of(parsed.get("ChecksumCRC64NVME"), 8),
        checksum_of(parsed.get("ChecksumCRC32C"), 4),
    )


def _failure(operation: str, response: Any, exception: Exception | None) -> TransferError | None:
    if exception is not None:
        from botocore.exceptions import ReadTimeoutError

        if operation == "GetObject" and isinstance(exception, ReadTimeoutError):
            # s3transfer tries these again itself; twice would be many times.
            return None
        return _translated(exception)
    http, parsed = response
    details = parsed.get("Error")
    if not details:
        trouble = _without_size(operation, parsed)
        if trouble:
            _forget_body(parsed)
        return trouble
    status = parsed.get("ResponseMetadata", {}).get("HTTPStatusCode", http.status_code)
    return store_error(str(details.get("Code", "")), str(details.get("Message", "")), operation, status=status)


def _forget_body(parsed: dict[str, Any]) -> None:
    """Close what nobody will read, and its socket with it."""
    body = parsed.get("Body")
    if body is not None:
        body.close()


def _without_size(operation: str, parsed: dict[str, Any]) -> TransferError | None:
    """s3transfer waits for ever for the end of a download whose first answer does not tell the object's size.

    And it takes whatever comes for the whole of a body of unknown length.
    """
    if operation != "GetObject":
        return None
    length, total = parsed.get("ContentLength"), str(parsed.get("ContentRange", "/0")).rpartition("/")[2]
    if length is not None and total.isdecimal():
        return None
    return BackendError("the store's answer does not tell its length: its head was cut or altered", transient=True)


def _translated(exception: Exception) -> TransferError | None:
    try:
        with translating(""):
            raise exception
    except TransferError as error:
        return error
    except (OSError, Ended):
        return None


def _slows_down(error: TransferError) -> bool:
    from .errors import Throttled

    return isinstance(error, Throttled)
