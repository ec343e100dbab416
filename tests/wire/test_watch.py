"""A part that crawls while others fly goes on over another connection, from the byte it reached."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.backends.request import CopyRequest
from statelift.backends.wire import WireFileSystem
from statelift.backends.wire.watch import Rates, SlowTransfer, Watch

MIB = 1 << 20


class CrawlingServer:
    """Sends an object's first range at 100 kB/s after its first half megabyte, and everything else at once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.firsts: list[int] = []
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, name="fault-slow"))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._serve, self._listener.accept()[0])

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer, peer.makefile("rb") as reader:
            while reader.readline():
                lines = iter(lambda: reader.readline().strip(), b"")
                (asked,) = [line for line in lines if line.lower().startswith(b"range: bytes=")]
                first, last = (int(each) for each in asked.split(b"=")[1].split(b"-"))
                self._answer(peer, first, last)

    def _answer(self, peer: socket.socket, first: int, last: int) -> None:
        self.firsts.append(first)
        head = f'HTTP/1.1 206 X\r\nETag: "1"\r\nContent-Length: {last - first + 1}\r\n'
        peer.sendall(f"{head}Content-Range: bytes {first}-{last}/{len(self._data)}\r\n\r\n".encode())
        at = first
        if first == 0:
            peer.sendall(self._data[: MIB // 2])
            at = MIB // 2
            while at < last and not self._stop.wait(0.1):
                peer.sendall(self._data[at : at + 10_000])
                at += 10_000
        peer.sendall(self._data[at : last + 1])

    def close(self) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


def test_a_crawling_part_is_taken_elsewhere(tmp_path: Path) -> None:
    data = random.randbytes(40 * MIB)
    server = CrawlingServer(data)
    options = {"s3.endpoint": server.endpoint, "s3.anonymous": True, "s3.region": "us-east-1"}
    limits = {"wire.part-size": "5mb", "transfer.retries": 0}
    file_system = WireFileSystem(Configuration({**options, **limits}, environ={}))
    try:
        request = CopyRequest("s3://b/k", str(tmp_path / "k"), size=len(data))
        file_system.copy_files([request], CloseableRegistry())
        assert (tmp_path / "k").read_bytes() == data
        assert any(0 < first < 5 * MIB for first in server.firsts)
    finally:
        file_system.close()
        server.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("statelift.backends.wire.watch.time.monotonic", lambda: now[0])
    return now


def test_too_few_bytes_in_the_window_are_a_stall(clock: list[float]) -> None:
    watch = Watch(10.0, 1024, Rates(), hurries=True)
    for _ in range(2):
        clock[0] += 4.9
        watch.moved(400)
    clock[0] += 1.0
    with pytest.raises(TimeoutError, match=r"800 bytes in 10\.8 s"):
        watch.moved(0)


def test_a_slow_part_is_only_slow_beside_fast_ones(clock: list[float]) -> None:
    rates = Rates()
    for _ in range(3):
        watch = Watch(10.0, 1, rates, hurries=True)
        clock[0] += 3.0
        watch.moved(30_000)
    for _ in range(3):
        rates.add(1e6)
        rates.add(1e6)
    watch = Watch(10.0, 1, rates, hurries=True)
    clock[0] += 3.0
    with pytest.raises(SlowTransfer):
        watch.moved(30_000)
    patient = Watch(10.0, 1, rates, hurries=False)
    clock[0] += 3.0
    patient.moved(30_000)
