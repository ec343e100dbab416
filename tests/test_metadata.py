"""The metadata document: it round-trips, and no damage to it goes unnoticed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from statelift.backends.checksums import crc64nvme
from statelift.backends.errors import CheckpointError
from statelift.transfer.checkpoint.metadata import CheckpointMetadata, decode, encode
from statelift.transfer.checkpoint.records import refuse_contradictions
from statelift.transfer.cli.inspect import created_text
from statelift.transfer.handles import (
    DirectoryHandle,
    FileHandle,
    InMemoryHandle,
    KeyedStateHandle,
    KeyGroupRange,
    RelativeFileHandle,
    SegmentHandle,
    StateFile,
)

NAME = "s3://state/job/chk-7"
checksums = st.none() | st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**63 - 1)
texts = st.text(max_size=12)
names = st.text(alphabet="abcXYZ019-._é %", min_size=1, max_size=12).filter(lambda text: text not in {".", ".."})
relative = st.builds(
    RelativeFileHandle,
    st.sampled_from(["exclusive", "shared", "taskowned"]),
    names | st.tuples(names, names).map("/".join),
    counts,
    checksums,
    st.none() | texts,
)
absolute = st.builds(FileHandle, names.map("s3://bucket/{}".format), counts, checksums, st.none() | texts)


@st.composite
def segments(draw: st.DrawFn) -> SegmentHandle:
    file = draw(relative | absolute)
    offset = draw(st.integers(0, file.size))
    return SegmentHandle(file, offset, draw(st.integers(0, file.size - offset)), draw(checksums))


inline = st.builds(InMemoryHandle, st.binary(max_size=40))
keys = st.none() | st.binary(max_size=8)
files = st.builds(
    StateFile, names, inline | relative | absolute | segments(), keys, keys, st.none() | st.integers(0, 6)
)


@st.composite
def states(draw: st.DrawFn) -> KeyedStateHandle:
    most = draw(st.integers(1, 32768))
    first = draw(st.integers(0, most - 1))
    groups = KeyGroupRange(first, draw(st.integers(first - 1, most - 1)))
    shared, private = draw(st.lists(files, max_size=3)), draw(st.lists(files, max_size=2))
    return KeyedStateHandle(groups, most, draw(texts), draw(counts), tuple(shared), tuple(private), draw(texts))


@st.composite
def documents(draw: st.DrawFn) -> CheckpointMetadata:
    most = draw(st.integers(1, 32768))
    return CheckpointMetadata(
        draw(counts),
        most,
        draw(st.integers(1, most)),
        tuple(draw(st.lists(states(), max_size=2))),
        draw(st.sampled_from(["incremental", "full", "savepoint"])),
        draw(st.floats(0, 253402300799)),
        draw(st.dictionaries(texts, texts, max_size=3)),
    )


@given(documents())
@settings(max_examples=60)
def test_round_trip(metadata: CheckpointMetadata) -> None:
    try:
        refuse_contradictions(metadata.states, NAME)
    except CheckpointError:
        reject()
    assert decode(encode(metadata), name=NAME) == metadata


def state(*shared: StateFile) -> KeyedStateHandle:
    return KeyedStateHandle(
        KeyGroupRange(0, 127), 128, "backend", 7, shared, (StateFile("CURRENT", InMemoryHandle(b"M-4\n")),)
    )


METADATA = CheckpointMetadata(
    7,
    128,
    1,
    (
        state(
            StateFile("000012.sst", RelativeFileHandle("shared", "0b1c", 1000, 2**63, "etag"), b"\0\1a", b"\0\7z", 3),
            StateFile("000013.sst", SegmentHandle(FileHandle("s3://state/x", 100), 10, 20, 5)),
        ),
    ),
    created=1.5e9,
    properties={"job": "counts"},
)
DOCUMENT = encode(METADATA)


def test_the_document_reads_well_in_head() -> None:
    lines = DOCUMENT.decode("ascii").splitlines()
    assert (
        lines[0]
        == f"statelift-checkpoint 1 {len(DOCUMENT) - len(lines[0]) - 1} {crc64nvme(DOCUMENT[len(lines[0]) + 1 :]):016x}"
    )
    assert lines[1:4] == ["{", ' "checkpoint": 7,', ' "kind": "incremental",']
    assert sum('"000012.sst"' in line for line in lines) == 1
    assert max(map(len, lines)) < 250


@given(st.integers(0, len(DOCUMENT) - 1), st.integers(1, 255))
@settings(max_examples=400)
def test_any_single_byte_changed_is_noticed(position: int, change: int) -> None:
    damaged = bytearray(DOCUMENT)
    damaged[position] ^= change
    with pytest.raises(CheckpointError, match=NAME):
        decode(bytes(damaged), name=NAME)


def test_every_truncation_is_noticed() -> None:
    for length in range(len(DOCUMENT)):
        with pytest.raises(CheckpointError, match=f"{NAME}: the metadata .*use another checkpoint"):
            decode(DOCUMENT[:length], name=NAME)


def test_bytes_behind_the_end_are_noticed() -> None:
    with pytest.raises(CheckpointError, match=r"has \d+ bytes instead of"):
        decode(DOCUMENT + b"\n", name=NAME)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_metadata(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=NAME):
        decode(data, name=NAME)


def test_an_unknown_version_is_refused_by_name() -> None:
    newer = DOCUMENT.replace(b"checkpoint 1 ", b"checkpoint 12 ", 1)
    with pytest.raises(CheckpointError, match=r"chk-7: the metadata has version 12.*reads version 1 \(use the version"):
        decode(newer, name=NAME)


def sealed(body: bytes) -> bytes:
    return f"statelift-checkpoint 1 {len(body)} {crc64nvme(body):016x}\n".encode() + body


def changed(**values: object) -> bytes:
    """A sealed document with one shared file whose record has these values."""
    record = {"name": "a", "kind": "relative", "scope": "shared", "path": "p", "size": 1, **values}
    return of_record({key: value for key, value in record.items() if value is not None})


def of_record(record: dict[str, object], **head: object) -> bytes:
    one = {
        "backend": "b",
        "checkpoint": 7,
        "format": "rocksdb",
        "key_groups": [0, 3],
        "max_parallelism": 4,
        "shared": [record],
        "private": [],
    }
    state_head = {key: value for key, value in head.items() if key in one}
    whole = {
        "checkpoint": 7,
        "kind": "full",
        "created": 0,
        "parallelism": 1,
        "max_parallelism": 4,
        "properties": {},
        "states": [{**one, **state_head}],
        **{key: value for key, value in head.items() if key not in one or key == "checkpoint"},
    }
    return sealed(json.dumps(whole).encode())


def test_the_builder_of_the_cases_below_builds_valid_documents() -> None:
    [found] = decode(changed(), name=NAME).states
    assert found.shared[0].handle == RelativeFileHandle("shared", "p", 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "tape"}, "unknown kind of state handle 'tape'"),
        ({"kind": "segment", "file": {"kind": "inline", "data": "", "size": 1}, "offset": 0}, "unknown kind"),
        ({"path": "../../etc/passwd"}, r"'\.\./\.\./etc/passwd' leads out of its directory"),
        ({"path": "/etc/passwd"}, "leads out"),
        ({"path": None}, "lacks 'path'"),
        ({"path": 5}, "malformed"),
        ({"scope": "elsewhere"}, "unknown scope 'elsewhere'"),
        ({"name": "../x.sst"}, "leads out"),
        ({"name": "a/x.sst"}, "the file name 'a/x.sst' is a path"),
        ({"name": ""}, "leads out"),
        ({"size": -1}, "-1 is not a count"),
        ({"size": "1"}, "malformed"),
        ({"size": True}, "malformed"),
        ({"size": 1.5}, "malformed"),
        ({"crc64nvme": "12"}, "not a CRC64NVME"),
        ({"crc64nvme": "z" * 16}, "malformed"),
        ({"etag": 7}, "malformed"),
        ({"smallest": "0g"}, "malformed"),
        ({"kind": "inline", "data": "!"}, "malformed"),
        ({"kind": "file", "uri": "s3://b/../c"}, "leads out"),
        (
            {"kind": "segment", "file": {"kind": "file", "uri": "s3://b/c", "size": 5}, "offset": 4, "size": 2},
            "ends at 6",
        ),
    ],
)
def test_a_sealed_document_with_a_wrong_file_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        decode(changed(**values), name=NAME)
    assert NAME in str(caught.value)


RECORD: dict[str, object] = {"name": "a", "kind": "inline", "data": ""}


@pytest.mark.parametrize(
    "head",
    [
        {"parallelism": 5},
        {"parallelism": 0},
        {"key_groups": [0, 4]},
        {"key_groups": [3, 1]},
        {"key_groups": [0]},
        {"key_groups": [-1, 3]},
        {"properties": {"a": 1}},
        {"properties": None},
        {"created": "now"},
        {"states": 5},
        {"states": [None]},
        {"format": 1},
        {"created": float("nan")},
        {"created": float("inf")},
        {"created": 1e300},
        {"created": -1},
        {"max_parallelism": 1 << 16},
        {"checkpoint": 1 << 63},
        {"checkpoint": -1},
    ],
)
def test_a_sealed_document_with_a_wrong_head_is_refused(head: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=f"{NAME}: the metadata is malformed"):
        decode(of_record(RECORD, **head), name=NAME)


@pytest.mark.parametrize("kind", ["differential", None, 1, ["full"]])
def test_an_unknown_kind_of_checkpoint_is_refused_by_name(kind: object) -> None:
    with pytest.raises(CheckpointError, match=re.escape(f"{NAME}: unknown kind of checkpoint {kind!r}")):
        decode(of_record(RECORD, kind=kind), name=NAME)


def two_files(one: StateFile, other: StateFile) -> CheckpointMetadata:
    return replace(METADATA, states=(state(one), state(other)))


def test_files_that_contradict_each_other_are_refused_and_not_written() -> None:
    small, large = (StateFile("a.sst", RelativeFileHandle("shared", "p", size)) for size in (1, 2))
    with pytest.raises(CheckpointError, match=r"the file shared/p has two sizes, 1 and 2 bytes"):
        encode(two_files(small, large))
    segment = StateFile("a.sst", SegmentHandle(RelativeFileHandle("shared", "p", 3), 0, 1))
    with pytest.raises(CheckpointError, match=r"the file shared/p has two sizes, 1 and 3 bytes"):
        encode(two_files(small, segment))
    elsewhere = StateFile("b.sst", RelativeFileHandle("exclusive", "p", 2))
    decode(encode(two_files(small, elsewhere)), name=NAME)
    twice = replace(METADATA, states=(state(small, small),))
    with pytest.raises(CheckpointError, match=r"subtask 0 has two files 'a\.sst'"):
        encode(twice)
    record = {"name": "a", "kind": "inline", "data": ""}
    with pytest.raises(CheckpointError, match=f"{NAME}: subtask 0 has two files 'a'"):
        decode(of_record(record, private=[record]), name=NAME)


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b"{", b'{"a": NaN}', b"\xff", b"[" * 100_000])
def test_a_sealed_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(CheckpointError, match=NAME):
        decode(sealed(body), name=NAME)


@pytest.mark.parametrize(
    "metadata",
    [
        replace(METADATA, created=float("nan")),
        replace(METADATA, states=(state(StateFile("d", DirectoryHandle("s3://b/d"))),)),  # type: ignore[arg-type]
        replace(METADATA, states=(state(StateFile("a", RelativeFileHandle("shared", "../a", 1))),)),
        replace(METADATA, states=(state(StateFile("a", RelativeFileHandle("mine", "a", 1))),)),
        replace(METADATA, states=(state(StateFile("../a", InMemoryHandle(b""))),)),
    ],
)
def test_what_could_not_be_read_is_not_written(metadata: CheckpointMetadata) -> None:
    with pytest.raises(CheckpointError):
        encode(metadata)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["inline", "file", "segment", "relative", "shared", "../x", "\ud800", "0" * 16, "s3://b/c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON document."""
    for key, value in enumerate(tree) if isinstance(tree, list) else tree.items():
        yield tree, key
        if isinstance(value, list | dict):
            yield from places(value)


@given(anything)
@settings(max_examples=150, deadline=None)
def test_any_sealed_json_is_refused_as_a_checkpoint(value: object) -> None:
    with pytest.raises(CheckpointError, match=NAME):
        decode(sealed(json.dumps(value).encode()), name=NAME)


@given(st.data(), documents())
@settings(max_examples=300, deadline=None)
def test_a_sealed_document_with_anything_anywhere_is_read_or_refused(
    data: st.DataObject, metadata: CheckpointMetadata
) -> None:
    """Whoever can write a checkpoint can seal it: no value may make the reader fail in another way."""
    try:
        body = json.loads(encode(metadata).partition(b"\n")[2])
    except CheckpointError:
        reject()
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(list(places(body))))
        if data.draw(st.booleans()):
            container[key] = data.draw(anything)
        elif isinstance(container, dict):
            del container[key]
        else:
            container.append(container[key])
    try:
        found = decode(sealed(json.dumps(body).encode()), name=NAME)
    except CheckpointError as error:
        assert NAME in str(error)
    else:
        assert created_text(found)
        assert found.size >= 0


def test_a_hundred_thousand_handles_take_seconds_at_most() -> None:
    shared = tuple(
        StateFile(f"{i:06}.sst", RelativeFileHandle("shared", f"{i:036}", i, i), b"\0\0key", b"\0\7key", 6)
        for i in range(100_000)
    )
    metadata = replace(METADATA, states=(state(*shared),))
    started = time.process_time()
    assert decode(encode(metadata), name=NAME) == metadata
    assert time.process_time() - started < 10
