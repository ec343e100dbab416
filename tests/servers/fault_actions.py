"""What a `fault.Rule` may do to an exchange: one function per fault, each returns an action."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from xml.sax.saxutils import escape

from .fault import Action, Answer, Exchange, Headers


def _error_body(code: str, message: str) -> bytes:
    text = f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message><RequestId>0</RequestId></Error>"
    return ('<?xml version="1.0" encoding="UTF-8"?>\n' + text).encode()


def error_answer(status: int, code: str, message: str, headers: Mapping[str, str]) -> Answer:
    """An error of S3's form."""
    body = _error_body(code, message)
    shown: Headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), *headers.items()]
    return Answer(status, HTTPStatus(status).phrase, shown, body)


def status(code: int, error: str, *, message: str = "by order", headers: Mapping[str, str] | None = None) -> Action:
    """An S3 error answer; the upstream is not asked."""

    def act(exchange: Exchange) -> None:
        exchange.answer(error_answer(code, error, message, headers or {}))

    return act


def empty_status(code: int) -> Action:
    """An error without a body, as load balancers give."""

    def act(exchange: Exchange) -> None:
        exchange.answer(Answer(code, HTTPStatus(code).phrase, [("Content-Length", "0")]))

    return act


def redirect(region: str) -> Action:
    """301 PermanentRedirect that tells the bucket's region."""
    return status(301, "PermanentRedirect", headers={"x-amz-bucket-region": region})


def slow_down(*, retry_after: int | None = None) -> Action:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return status(503, "SlowDown", message="Please reduce your request rate.", headers=headers)


def error_in_200(error: str = "InternalError") -> Action:
    """200 whose body is an error, as CopyObject and CompleteMultipartUpload may answer."""

    def act(exchange: Exchange) -> None:
        exchange.answer(error_answer(200, error, "by order", {}))

    return act


def answer(made: Answer) -> Action:
    """This answer, whatever was asked."""

    def act(exchange: Exchange) -> None:
        exchange.answer(made)

    return act


def raw(data: bytes, *, close: bool = True) -> Action:
    """These bytes, whatever was asked."""

    def act(exchange: Exchange) -> None:
        exchange.send(data)
        exchange.keep = not close

    return act


def altered(change: Callable[[Answer], object]) -> Action:
    """The upstream's answer after ``change`` worked on it."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        change(found)
        exchange.answer(found)

    return act


def _start(exchange: Exchange, after: int, *, of_head: bool) -> None:
    """Send the first ``after`` bytes, of the head, or of the body behind a whole head."""
    found = exchange.forward()
    exchange.send(found.head[:after] if of_head else found.head + found.body[:after])


def reset(*, after: int = 0, of_head: bool = False) -> Action:
    """RST after so many bytes of the body (or of the head)."""

    def act(exchange: Exchange) -> None:
        _start(exchange, after, of_head=of_head)
        # What is sent must have left before the RST throws it away.
        time.sleep(0.01)
        exchange.reset()

    return act


def refuse() -> Action:
    """RST without an answer; the upstream is not asked."""

    def act(exchange: Exchange) -> None:
        exchange.reset()

    return act


def truncate(*, after: int = 0, of_head: bool = False) -> Action:
    """The end of the connection, in good order, after so many bytes."""

    def act(exchange: Exchange) -> None:
        _start(exchange, after, of_head=of_head)
        exchange.hang_up()

    return act


def stall(*, after: int = 0, of_head: bool = False) -> Action:
    """Nothing more, for ever, after so many bytes."""

    def act(exchange: Exchange) -> None:
        _start(exchange, after, of_head=of_head)
        exchange.wait()

    return act


def overlong(extra: int, *, declared: bool) -> Action:
    """More bytes than the object has: counted by ``Content-Length``, or behind its end."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        if declared:
            found.replace("Content-Length", str(len(found.body) + extra))
        found.body += b"x" * extra
        exchange.answer(found)

    return act


def short(missing: int) -> Action:
    """Fewer bytes than the object has, and a ``Content-Length`` that says so."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        found.body = found.body[: max(0, len(found.body) - missing)]
        found.replace("Content-Length", str(len(found.body)))
        exchange.answer(found)

    return act


def drip(size: int, *, every: float, body_only: bool = False) -> Action:
    """The answer at ``size`` bytes every ``every`` seconds."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        data = found.body
        if body_only:
            exchange.send(found.head)
        else:
            data = found.head + data
        for start in range(0, len(data), size):
            exchange.send(data[start : start + size])
            exchange.wait(every)

    return act


def flip(at: int) -> Action:
    """One bit of the body is wrong."""

    def change(found: Answer) -> None:
        data = bytearray(found.body)
        if data:
            data[min(at, len(data) - 1)] ^= 0x10
        found.body = bytes(data)

    return altered(change)


def call(function: Callable[[], object]) -> Action:
    """Run ``function``, then let the request through: an overwrite between two ranges of an object."""

    def act(exchange: Exchange) -> None:
        function()
        exchange.answer(exchange.forward())

    return act


def with_headers(add: Iterable[tuple[str, str]] = (), *, drop: Iterable[str] = ()) -> Action:
    """The answer with further headers (also a second time, or nonsense) and without some."""
    extra, dropped = list(add), list(drop)

    def change(found: Answer) -> None:
        for name in dropped:
            found.replace(name, None)
        found.headers.extend(extra)

    return altered(change)


def set_headers(values: Mapping[str, str]) -> Action:
    """The answer with these headers instead of its own of that name: a wrong Content-Range or checksum."""

    def change(found: Answer) -> None:
        for name, value in values.items():
            found.replace(name, value)

    return altered(change)


def whole(body: bytes) -> Action:
    """200 with the whole object, as a store answers that ignores ``Range``."""

    def change(found: Answer) -> None:
        found.status, found.reason, found.body = 200, "OK", body
        found.replace("Content-Range", None)
        found.replace("Content-Length", str(len(body)))

    return altered(change)


def delay(seconds: float) -> Action:
    """The answer, ``seconds`` late."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        exchange.wait(seconds)
        exchange.answer(found)

    return act


def throttle(rate: float, *, first_byte: float = 0.0, piece: int = 1 << 16) -> Action:
    """The answer at ``rate`` bytes per second on this connection."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        exchange.wait(first_byte)
        exchange.send(found.head)
        for start in range(0, len(found.body), piece):
            part = found.body[start : start + piece]
            exchange.send(part)
            exchange.wait(len(part) / rate)

    return act
