"""The response reader gives the same body whatever the pieces in which it comes, and stops at limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.backends.wire.response import HEAD_LIMIT, BadResponse, ResponseReader, parse_head


def read(data: bytes, cuts: list[int], method: str = "GET") -> tuple[ResponseReader, bytes]:
    """Feed ``data`` cut at these offsets."""
    reader, body = ResponseReader(method), bytearray()
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    for first, last in itertools.pairwise(edges):
        for piece in reader.feed(memoryview(data)[first:last]):
            body += piece
    return reader, bytes(body)


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, offset = b"", 0
    for size in sizes:
        chunk = body[offset : offset + size]
        if chunk:
            out += b"%x;ext=1\r\n%s\r\n" % (len(chunk), chunk)
        offset += size
    if offset < len(body):
        out += b"%X\r\n%s\r\n" % (len(body) - offset, body[offset:])
    return out + b"0\r\nx-amz-trailer: yes\r\n\r\n"


BODIES = st.binary(max_size=300)
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
CUTS = st.lists(st.integers(1, 900), max_size=30)
INTERIM = st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 102 Wait\r\na: b\r\n\r\n" * 2])


@given(BODIES, CUTS, INTERIM, st.binary(max_size=5))
def test_a_body_with_a_length(body: bytes, cuts: list[int], interim: bytes, excess: bytes) -> None:
    data = interim + b'HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nETag: "x"\r\n\r\n' % len(body) + body
    reader, found = read(data + excess, cuts)
    assert found == body
    assert reader.done
    assert reader.excess == bool(excess)
    assert reader.reusable == (not excess)
    assert reader.head is not None
    assert (reader.head.status, reader.head.headers["etag"]) == (206, '"x"')


@given(BODIES, CUTS, st.lists(st.integers(1, 100), max_size=6), INTERIM)
def test_a_chunked_body(body: bytes, cuts: list[int], sizes: list[int], interim: bytes) -> None:
    data = interim + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, sizes)
    reader, found = read(data, cuts)
    assert found == body
    assert reader.reusable
    assert reader.head is not None
    assert reader.head.headers["x-amz-trailer"] == "yes"


@given(BODIES, CUTS)
def test_a_body_to_the_end_of_the_connection(body: bytes, cuts: list[int]) -> None:
    reader, found = read(b"HTTP/1.0 200 OK\r\n\r\n" + body, cuts)
    assert found == body
    assert not reader.done
    reader.end()
    assert reader.done
    assert not reader.reusable


@given(st.binary(max_size=400), CUTS)
@settings(max_examples=300)
def test_garbage_is_refused_or_waited_for_and_nothing_else(data: bytes, cuts: list[int]) -> None:
    try:
        reader, _ = read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data, cuts)
    except BadResponse:
        return
    if not reader.done:
        with pytest.raises(BadResponse):
            reader.end()


@given(BODIES.filter(bool), st.data())
def test_a_body_cut_short_is_an_error(body: bytes, data: st.DataObject) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reader, _ = read(raw[: data.draw(st.integers(0, len(raw) - 1))], [])
    with pytest.raises(BadResponse, match="closed"):
        reader.end()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK",
        b"SSH-2.0-x",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 abc OK",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\n folded: x",
        b"HTTP/1.1 200 OK\r\nname : x",
    ],
)
def test_malformed_heads_are_refused(head: bytes) -> None:
    with pytest.raises(BadResponse):
        parse_head(head)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 1\r\nContent-Length: 2",
        b"Content-Length: -1",
        b"Content-Length: 0x10",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: gzip",
    ],
)
def test_lengths_that_cannot_be_trusted_are_refused(headers: bytes) -> None:
    with pytest.raises(BadResponse):
        read(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n\r\n", [])


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_endless_headers_are_refused(step: int) -> None:
    data = b"HTTP/1.1 200 OK\r\na: " + b"x" * (HEAD_LIMIT + 10)
    with pytest.raises(BadResponse, match="headers of more than"):
        read(data, list(range(0, len(data), max(step, 500))))


def test_an_endless_chunk_line_is_refused() -> None:
    with pytest.raises(BadResponse, match="too long"):
        read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 10_000, [])


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_answers_without_a_body(method: str, status: int) -> None:
    reader, body = read(b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\n" % status, [], method)
    assert (body, reader.done, reader.reusable) == (b"", True, True)


@pytest.mark.parametrize(
    ("raw", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
    ],
)
def test_whether_the_connection_is_kept(raw: bytes, *, keep: bool) -> None:
    assert read(raw, [])[0].reusable is keep
