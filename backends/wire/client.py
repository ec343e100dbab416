"""One request and its answer: addressed, signed, sent, and refused answers turned into errors.

What only the connection or the signature is to blame for is mended here, once each: a kept
connection that went stale, a redirect to another region, credentials that expired. Everything
else is an error of the tree, and the scheduler's business.
"""

from __future__ import annotations

import hashlib
import math
import os
import time

from ..batch import backoff
from ..errors import AccessDenied, ConnectionFailed, SourceChanged, TransferError
from ..s3_access import S3Access
from ..s3_errors import is_expired
from .answers import code_of, error_of, is_error, region_of, retry_after
from .connection import Connection
from .endpoint import Address, Endpoints
from .exchange import SLICE, Exchange, FileBody, Order, network
from .loop import Loop
from .options import WireOptions
from .poller import READ
from .pool import Pool
from .response import BadResponse, Head, ResponseReader
from .retry import Throttle
from .signers import Signers
from .signing import EMPTY_SHA256, UNSIGNED_PAYLOAD, Signer, encode_query

_THROTTLED = {429, 503}
_CHUNK = 256 << 10


class Client:
    """Requests of one loop.

    Attributes:
        promptest: the shortest wait for an answer's head, in seconds.
    """

    def __init__(self, loop: Loop, access: S3Access, endpoints: Endpoints, pool: Pool, options: WireOptions) -> None:
        self.loop = loop
        self.access = access
        self.pool = pool
        self._endpoints = endpoints
        self._options = options
        self.buffer = memoryview(bytearray(options.buffer_size))
        self.scratch = memoryview(bytearray(_CHUNK))
        self._throttles: dict[str, Throttle] = {}
        self._signers = Signers(loop, access)
        self.promptest = math.inf

    # Asking.

    async def ask(self, order: Order) -> tuple[Head, bytes]:
        """The whole answer to a request. A 200 that carries an error is one.

        Raises:
            TransferError: of whatever kind the answer or the network calls for.
        """
        exchange = await self.open(order)
        body = b""
        try:
            with network(order.subject):
                body = await exchange.read()
        except BaseException:
            exchange.abort()
            raise
        exchange.finish()
        if is_error(body):
            raise error_of(Head(500, "", exchange.head.headers, keep_alive=True), body, order.subject)
        return exchange.head, body

    async def open(self, order: Order) -> Exchange:
        """The head of a successful answer (2xx), whose body is still to be read.

        Raises:
            TransferError: of whatever kind the answer or the network calls for.
        """
        while True:
            await self._pause(order.bucket)
            signer = await self._signers.of(self._endpoints.of(order.bucket).region)
            generation = self._signers.generation
            exchange = await self._exchange(order, signer)
            if 200 <= exchange.head.status < 300:
                return exchange
            error = await self._refused(order, exchange, generation)
            if error is not None:
                raise error

    async def _refused(self, order: Order, exchange: Exchange, generation: int) -> TransferError | None:
        """The error of a refusal; None where the request is to be sent again at once."""
        try:
            with network(order.subject):
                body = await exchange.read()
        except BaseException:
            exchange.abort()
            raise
        exchange.finish()
        head = exchange.head
        if self._is_redirected(order, head, body):
            return None
        if is_expired(code_of(head, body)) and await self._signers.refresh(generation):
            return None
        error = error_of(head, body, order.subject)
        if self._signers.anonymous and head.status == 400:
            # Stores that cannot read an unsigned request (rclone) do not say that it is denied.
            error = AccessDenied(str(error), remedy="the store may want credentials: s3.anonymous is set")
        if head.status in _THROTTLED:
            self._throttle(order.bucket).slow_down(backoff(0), retry_after(head))
        return error

    def _is_redirected(self, order: Order, head: Head, body: bytes) -> bool:
        region = region_of(head, body)
        if head.status in {301, 307, 308}:
            location = head.headers.get("location")
            same = location is not None and self._is_same_path(order, location)
            return self._endpoints.redirect(order.bucket, region, location if same else None)
        wrong_region = head.status == 400 and region is not None
        return wrong_region and self._endpoints.redirect(order.bucket, region, None)

    def _is_same_path(self, order: Order, location: str) -> bool:
        # A store that tidies paths ("//", "..") redirects to another object: that is no region redirect.
        path = self._endpoints.of(order.bucket).path(order.key)
        return location.partition("?")[0].endswith(path)

    def _throttle(self, bucket: str) -> Throttle:
        return self._throttles.setdefault(bucket, Throttle())

    async def _pause(self, bucket: str) -> None:
        throttle = self._throttles.get(bucket)
        while throttle is not None and (pause := throttle.pause()) > 0:
            await self.loop.sleep(pause)

    # Sending.

    async def _exchange(self, order: Order, signer: Signer) -> Exchange:
        address = self._endpoints.of(order.bucket)
        raw = self._head(order, address, signer)
        fresh = False
        while True:
            connection = await self.pool.acquire(self.loop, address.server, self.scratch, fresh=fresh)
            reader = ResponseReader(order.method)
            try:
                with network(order.subject):
                    return await self._converse(order, connection, reader, raw)
            except ConnectionFailed:
                self.pool.discard(connection)
                # The server closed a kept connection while the request was on its way: that is no failure.
                if connection.exchanges == 0 or reader.received or fresh:
                    raise
                fresh = True
            except BaseException:
                self.pool.discard(connection)
                raise

    def _head(self, order: Order, address: Address, signer: Signer) -> bytes:
        path, query = address.path(order.key), encode_query(order.query)
        headers = {"host": address.server.authority, **order.headers}
        signer.sign(order.method, path, query, headers, payload=self._payload(order.body))
        headers.update(order.unsigned)
        headers["user-agent"] = "statelift"
        if order.body is not None:
            headers["content-length"] = str(order.body.length if isinstance(order.body, FileBody) else len(order.body))
        elif order.method in {"PUT", "POST"}:
            headers["content-length"] = "0"
        target = f"{path}?{query}" if query else path
        proxy = address.server.proxy
        if proxy is not None and not address.server.tls:
            target = f"http://{address.server.authority}{target}"
            if proxy.authorization:
                headers["proxy-authorization"] = proxy.authorization
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return f"{order.method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def _payload(self, body: bytes | FileBody | None) -> str:
        if body is None:
            return EMPTY_SHA256 if self._options.sign_payload else UNSIGNED_PAYLOAD
        if isinstance(body, bytes):
            return hashlib.sha256(body).hexdigest()
        return _sha256(body) if self._options.sign_payload else UNSIGNED_PAYLOAD

    async def _converse(self, order: Order, connection: Connection, reader: ResponseReader, raw: bytes) -> Exchange:
        stall = self.access.transfer.stall_timeout
        connection.expect(0)
        first: list[memoryview] = []
        await connection.send(raw, time.monotonic() + stall)
        if isinstance(order.body, bytes):
            await connection.send(order.body, time.monotonic() + stall)
        elif order.body is not None:
            first = await self._send_file(order.body, connection, reader, order.subject)
        sent = time.monotonic()
        until = sent + (order.patience or stall)
        while reader.head is None:
            first = await self._receive_head(connection, reader, until)
        order.waited = time.monotonic() - sent
        self.promptest = min(self.promptest, order.waited)
        return Exchange(self, connection, reader, reader.head, first)

    async def _receive_head(self, connection: Connection, reader: ResponseReader, until: float) -> list[memoryview]:
        await connection.readable(until)
        try:
            count = connection.receive(self.buffer, self.scratch)
        except BlockingIOError:
            connection.drained = True
            if time.monotonic() >= until:
                raise TimeoutError("no answer") from None
            return []
        if count == 0:
            reader.end()
            raise ConnectionResetError("closed before an answer")
        return reader.feed(self.buffer[:count])

    async def _send_file(
        self, body: FileBody, connection: Connection, reader: ResponseReader, subject: str
    ) -> list[memoryview]:
        """Send the body; stop where an answer comes before its end. Returns that answer's first pieces."""
        sent, stall = 0, self.access.transfer.stall_timeout
        last = time.monotonic()
        while sent < body.length:
            try:
                count = self._send_some(body, connection, sent)
            except BlockingIOError:
                if await connection.writable_or_readable(time.monotonic() + SLICE) & READ:
                    first = self._early(connection, reader)
                    if reader.head is not None:
                        return first
                if time.monotonic() - last > stall:
                    raise TimeoutError("the body is not taken") from None
                continue
            except (BrokenPipeError, ConnectionResetError):
                # The refusal may have come before the reset.
                first = self._early(connection, reader)
                if reader.head is None:
                    raise
                return first
            if count == 0:
                raise SourceChanged(f"the local file for {subject} became shorter while it was read")
            sent += count
            last = time.monotonic()
            body.sent(count)
            if body.pace is not None and (pause := body.pace(count)) > 0:
                await self.loop.sleep(pause)
                last = time.monotonic()
            else:
                await self.loop.turn()
        await connection.flush(time.monotonic() + stall)
        return []

    @staticmethod
    def _refuse_rest(reader: ResponseReader) -> None:
        """An answer came before the body had ended: it can only be a refusal."""
        if reader.head is None:
            return
        if reader.head.status < 300:
            raise BadResponse("success before the body was sent")
        reader.head.keep_alive = False

    def _send_some(self, body: FileBody, connection: Connection, sent: int) -> int:
        offset, left = body.offset + sent, body.length - sent
        if connection.can_sendfile:
            return connection.sendfile(body.fd, offset, left)
        if connection.tls is not None:
            connection.tls.flush()
        count = os.preadv(body.fd, [self.scratch[: min(left, _CHUNK)]], offset)
        return connection.send_some(self.scratch[:count]) if count else 0

    def _early(self, connection: Connection, reader: ResponseReader) -> list[memoryview]:
        try:
            count = connection.receive(self.buffer, self.scratch)
        except BlockingIOError:
            return []
        pieces = reader.feed(self.buffer[:count]) if count else []
        self._refuse_rest(reader)
        return pieces


def _sha256(body: FileBody) -> str:
    digest, offset, left = hashlib.sha256(), body.offset, body.length
    while left > 0:
        data = os.pread(body.fd, min(left, 1 << 20), offset)
        if not data:
            break
        digest.update(data)
        offset, left = offset + len(data), left - len(data)
    return digest.hexdigest()
