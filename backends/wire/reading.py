"""One small object into memory: the metadata that a restore begins with."""

from __future__ import annotations

from ..checksums import crc64nvme
from ..errors import IntegrityError, TransferError
from ..request import locate
from .client import Client
from .exchange import Exchange, Order, network
from .retry import Budget
from .verify import differs, stored_sum

_NO_LIMIT = 1 << 62


async def read_object(client: Client, uri: str, budget: Budget, *, at_most: int | None, verify: bool) -> bytes:
    """A whole object, compared with the checksum that the store returns with it, if any.

    Raises:
        IntegrityError: it has more than ``at_most`` bytes, or other bytes than the store's checksum says.
        TransferError: of whatever kind the store's answer or the network calls for, after retries.
    """
    while True:
        try:
            return await _try(client, uri, at_most, verify=verify)
        except TransferError as error:
            delay = budget.delay(error)
            if delay is None:
                raise
        await client.loop.sleep(delay)


async def _try(client: Client, uri: str, at_most: int | None, *, verify: bool) -> bytes:
    location = locate(uri)
    order = Order("GET", location.bucket, location.key, unsigned={"accept-encoding": "identity"})
    if verify:
        order.headers["x-amz-checksum-mode"] = "ENABLED"
    exchange = await client.open(order)
    try:
        with network(uri):
            body = await _body(exchange, uri, at_most)
            stored = stored_sum(exchange.head) if verify else None
    except BaseException:
        exchange.abort()
        raise
    exchange.finish()
    if stored is not None:
        differs(uri, "CRC64NVME", crc64nvme(body), stored, 8)
    return body


async def _body(exchange: Exchange, uri: str, at_most: int | None) -> bytes:
    _require_length(uri, exchange.head.number("content-length") or 0, at_most)
    body = await exchange.read(_NO_LIMIT if at_most is None else at_most + 1)
    _require_length(uri, len(body), at_most)
    return body


def _require_length(uri: str, size: int, at_most: int | None) -> None:
    if at_most is not None and size > at_most:
        raise IntegrityError(f"{uri} has {size} bytes, more than {at_most}: it is not what its name says")
