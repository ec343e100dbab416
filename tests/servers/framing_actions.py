"""Right answers in awkward forms, and answers cut at any byte: how a message is framed and sent in pieces."""

from __future__ import annotations

import gzip
import time
from http import HTTPStatus
from typing import Literal

from .fault import Action, Exchange

Ending = Literal["reset", "end", "stall"]


def cut(at: int, ending: Ending) -> Action:
    """The first ``at`` bytes of the answer, head and body taken as one; then RST, the end, or nothing more."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        whole = found.head + (b"" if exchange.request.method == "HEAD" else found.body)
        exchange.send(whole[:at])
        if ending == "stall" and at < len(whole):
            exchange.wait()
        elif ending != "reset":
            exchange.hang_up()
        # What is sent must have left before the RST throws it away.
        time.sleep(0.005)
        exchange.reset()

    return act


def split_at(at: int) -> Action:
    """The answer in two writes that arrive apart."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        whole = found.head + (b"" if exchange.request.method == "HEAD" else found.body)
        exchange.send(whole[:at])
        time.sleep(0.003)
        exchange.send(whole[at:])

    return act


def http10(*, keep: bool = False) -> Action:
    """An answer of HTTP/1.0: the connection ends behind it unless it says keep-alive."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        if keep:
            found.replace("Connection", "keep-alive")
        body = b"" if exchange.request.method == "HEAD" else found.body
        exchange.send(found.head.replace(b"HTTP/1.1", b"HTTP/1.0", 1) + body)
        exchange.keep = keep

    return act


def compressed() -> Action:
    """The body as a proxy compresses it that was not asked to."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        found.body = gzip.compress(found.body, 1)
        found.replace("Content-Encoding", "gzip")
        found.replace("Content-Length", str(len(found.body)))
        exchange.answer(found)

    return act


def twice() -> Action:
    """The answer, and again, unasked, at once: later it could not be told from the next request's."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        body = b"" if exchange.request.method == "HEAD" else found.body
        exchange.send((found.head + body) * 2)

    return act


def split(size: int) -> Action:
    """The head in writes of ``size`` bytes that arrive apart; the body in one."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        for start in range(0, len(found.head), size):
            exchange.send(found.head[start : start + size])
            time.sleep(0.0005)
        exchange.send(b"" if exchange.request.method == "HEAD" else found.body)

    return act


def chunked(size: int, *, trailer: str = "") -> Action:
    """The body in chunked transfer-encoding (RFC 9112, 7.1)."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        found.replace("Content-Length", None)
        found.replace("Transfer-Encoding", "chunked")
        parts = [found.body[start : start + size] for start in range(0, len(found.body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        found.body = body + b"0\r\n" + trailer.encode() + b"\r\n"
        exchange.answer(found)

    return act


def interim(code: int = 100, *, times: int = 1) -> Action:
    """Interim answers (100 Continue, 103 Early Hints) before the final one."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        hint = "Link: </x>; rel=preload\r\n" if code == 103 else ""
        exchange.send(f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\n{hint}\r\n".encode() * times)
        exchange.answer(found)

    return act


def closing(*, announced: bool = True) -> Action:
    """The connection ends after the answer, with or without ``Connection: close``."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        if announced:
            found.replace("Connection", "close")
        exchange.answer(found)
        exchange.keep = False

    return act


def without_length() -> Action:
    """The body ends with the connection: neither a length nor chunks (RFC 9112, 6.3)."""

    def act(exchange: Exchange) -> None:
        found = exchange.forward()
        found.replace("Content-Length", None)
        found.replace("Connection", "close")
        exchange.answer(found)
        exchange.keep = False

    return act
