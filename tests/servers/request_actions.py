"""What a `fault.Rule` with ``early`` may do while a request's body is on its way, and what damages it."""

from __future__ import annotations

import time

from .fault import Action, Exchange
from .fault_actions import error_answer


def reset_request(after: int) -> Action:
    """RST when so many bytes of the body have come."""

    def act(exchange: Exchange) -> None:
        exchange.take(after)
        exchange.reset()

    return act


def end_request(after: int) -> Action:
    """The end of the connection, in good order, when so many bytes of the body have come."""

    def act(exchange: Exchange) -> None:
        exchange.take(after)
        exchange.hang_up()

    return act


def stall_request(after: int) -> Action:
    """The body is taken up to here and no further; no answer comes."""

    def act(exchange: Exchange) -> None:
        exchange.take(after)
        exchange.wait()

    return act


def answer_early(after: int, status: int, code: str) -> Action:
    """A refusal when so many bytes of the body have come, then the end."""

    def act(exchange: Exchange) -> None:
        exchange.take(after)
        exchange.answer(error_answer(status, code, "by order", {"Connection": "close"}))
        # A RST for unread bytes would throw the answer away with them.
        time.sleep(0.05)
        exchange.keep = False

    return act


def succeed_early(after: int) -> Action:
    """200 before the body has come: a lie."""

    def act(exchange: Exchange) -> None:
        exchange.take(after)
        exchange.send(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n')
        time.sleep(0.05)
        exchange.keep = False

    return act


def continue_then_forward(*, times: int = 1) -> Action:
    """100 Continue, which nobody asked for, while the body comes; then what the store says."""

    def act(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n" * times)
        exchange.read_body()
        exchange.answer(exchange.forward())

    return act


def damaged(at: int) -> Action:
    """One bit of the body changes on its way to the store."""

    def act(exchange: Exchange) -> None:
        body = bytearray(exchange.request.body)
        body[min(at, len(body) - 1)] ^= 0x10
        exchange.answer(exchange.forward(bytes(body)))

    return act


def lost_answer() -> Action:
    """The store does what it is asked; its answer never arrives."""

    def act(exchange: Exchange) -> None:
        exchange.forward()
        exchange.reset()

    return act
