from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelift.transfer.keyed import manifest as module
from statelift.transfer.keyed.coding import log, prefixed, records, varint
from statelift.transfer.keyed.manifest import (
    Manifest,
    TableFile,
    UnknownManifest,
    compose,
    parse,
    read_manifest,
    serialize,
    write_manifest,
)
from statelift.transfer.keyed.options import RocksOptions
from statelift.transfer.keyed.rocksdb import open_rocksdb

NUMBERS = st.integers(0, 2**63)
KEYS = st.binary(min_size=8, max_size=40)
UNIQUE = st.binary(min_size=16, max_size=16)


@st.composite
def tables(draw, number: int) -> TableFile:
    fields = ((12, draw(UNIQUE)), (13, varint(draw(st.integers(1, 99)))))
    more = draw(st.lists(st.tuples(st.sampled_from([2, 5, 6, 7, 8, 9, 10, 11, 14, 15]), st.binary(max_size=9))))
    return TableFile(number, draw(st.integers(0, 6)), draw(NUMBERS), draw(KEYS), draw(KEYS), 0, 1, (*fields, *more))


@st.composite
def manifests(draw) -> Manifest:
    numbers = draw(st.lists(st.integers(1, 10**7), unique=True, max_size=20))
    files = [draw(tables(number)) for number in sorted(numbers)]
    files.sort(key=lambda file: (file.level, file.number))
    return Manifest(tuple(files), draw(NUMBERS), draw(NUMBERS), draw(NUMBERS))


@given(manifests())
@settings(max_examples=50)
def test_what_is_written_is_read(manifest):
    assert parse(serialize(manifest)) == manifest


@given(st.lists(st.binary(min_size=1, max_size=100_000), max_size=5))
@settings(max_examples=30)
def test_records_cross_blocks(parts):
    assert list(records(log(parts))) == parts


@given(st.integers(0, 14), st.integers(0, 20))
def test_a_record_may_start_anywhere_in_a_block(before_end, length):
    parts = [bytes(32768 - 7 - before_end), b"x" * length] if length else [bytes(32768 - 7 - before_end)]
    assert list(records(log(parts))) == parts


@given(manifests(), st.data())
@settings(max_examples=50)
def test_damage_is_noticed(manifest, data):
    document = bytearray(serialize(manifest))
    document[data.draw(st.integers(0, len(document) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(UnknownManifest):
        parse(bytes(document))


@given(manifests(), st.data())
@settings(max_examples=50)
def test_a_short_manifest_is_another_one_or_refused(manifest, data):
    document = serialize(manifest)
    cut = data.draw(st.integers(0, len(document) - 1))
    try:
        found = parse(document[:cut])
    except UnknownManifest:
        return
    # Cut between two records; the files that are missing are found missing by the metadata.
    assert set(found.files) < set(manifest.files)


HEAD = b"".join(map(varint, (2, 0, 3, 9, 4, 9)))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (varint(1) + prefixed(b"rocksdb.ReverseBytewiseComparator"), "comparator"),
        (varint(203) + varint(1), "column families"),
        (varint(201) + prefixed(b"other"), "tag 201"),
        (varint(400) + varint(0), "tag 400"),
        (varint(8194) + prefixed(b""), "tag 8194"),
        (varint(7) + varint(0), "tag 7"),
        (varint(6) + varint(0) + varint(8), "was not there"),
        (b"".join([*map(varint, (103, 0, 8, 9)), prefixed(b"k"), prefixed(b"k"), varint(0), varint(0)]), "short key"),
        (
            b"".join(
                [
                    *map(varint, (103, 0, 8, 9)),
                    prefixed(bytes(9)),
                    prefixed(bytes(9)),
                    *map(varint, (0, 0, 65)),
                    prefixed(b"\1"),
                ]
            ),
            "field 65",
        ),
        (varint(3), "cut off"),
        (varint(1) + varint(99), "cut off"),
    ],
)
def test_what_is_unknown_is_refused(edit, reason):
    with pytest.raises(UnknownManifest, match=reason):
        parse(log([HEAD, edit]))


def test_what_may_be_ignored_is_ignored():
    edit = (
        varint(8193) + prefixed(b"identity") + varint(8199) + prefixed(b"wal") + varint(5) + varint(3) + prefixed(b"k")
    )
    assert parse(log([HEAD, edit])) == Manifest((), 9, 9, 0)
    with pytest.raises(UnknownManifest, match="missing"):
        parse(log([edit]))


def test_current_must_name_a_manifest(tmp_path):
    (tmp_path / "CURRENT").write_text("../MANIFEST-000001\n")
    with pytest.raises(UnknownManifest, match="CURRENT names"):
        read_manifest(str(tmp_path))


@pytest.fixture
def database(tmp_path):
    """A real one: several levels, overlapping files in level 0, deletes, a range deletion."""
    options = RocksOptions(write_buffer_size=128 << 10, target_file_size=64 << 10, compression="none")
    directory = str(tmp_path / "real")
    opened = open_rocksdb(directory, options, create=True, automatic=False)
    source = random.Random(7)
    for round_ in range(6):
        for _ in range(2000):
            key = source.randrange(128).to_bytes(2, "big") + b"%d" % source.randrange(200)
            opened[key] = source.randbytes(100)
        opened.delete_range(b"\x00\x05", b"\x00\x06")
        opened.flush()
        if round_ == 2:
            opened.compact_range(None, None)
    yield directory, opened, options
    opened.close()


def test_a_real_manifest_says_what_rocksdb_says(database):
    directory, opened, _ = database
    found = {file.name: (file.level, file.size, file.first_key) for file in read_manifest(directory).files}
    expected = {
        each["name"].strip("/"): (each["level"], each["size"], each["start_key"]) for each in opened.live_files()
    }
    assert found == expected
    assert {level for level, _, _ in found.values()} >= {0, 6}
    assert all(file.unique_id and file.epoch for file in read_manifest(directory).files)


def test_rocksdb_opens_what_is_written(database, tmp_path):
    directory, opened, options = database
    opened.flush()
    manifest = read_manifest(directory)
    expected = dict(_rows(opened))
    other = tmp_path / "other"
    other.mkdir()
    for file in manifest.files:
        os.link(os.path.join(directory, file.name), other / file.name)
    write_manifest(str(other), manifest)
    again = open_rocksdb(str(other), options, automatic=False)
    assert dict(_rows(again)) == expected
    again.close()
    # RocksDB has written its own since.
    assert {file.unique_id for file in read_manifest(str(other)).files} == {file.unique_id for file in manifest.files}


def _rows(opened):
    position = opened.iter()
    position.seek_to_first()
    while position.valid():
        yield position.key(), position.value()
        position.next()
    position.status()


def test_manifest_and_current_are_replaced_never_written_into(tmp_path):
    """They may be hard links to a checkpoint's files."""
    manifest = Manifest((), 5, 7)
    write_manifest(str(tmp_path), manifest)
    kept = [(tmp_path / name).stat().st_ino for name in sorted(os.listdir(tmp_path))]
    os.link(tmp_path / "CURRENT", tmp_path / "kept")
    before = (tmp_path / "kept").read_bytes()
    write_manifest(str(tmp_path), Manifest((), 5, 20))
    assert (tmp_path / "kept").read_bytes() == before
    assert (tmp_path / "CURRENT").stat().st_ino not in kept


def _table(number: int, unique: int, *, level: int = 0, epoch: int = 1) -> TableFile:
    return TableFile(
        number, level, 10, bytes(10), bytes(10), 0, 1, ((12, unique.to_bytes(16, "big")), (13, varint(epoch)))
    )


def test_a_file_that_two_parts_have_is_taken_once():
    one = Manifest((_table(8, 1), _table(9, 2)), 50, 10)
    other = Manifest((_table(8, 3), _table(31, 2)), 70, 40)
    whole, (first, second) = compose([one, other])
    assert whole.last_sequence == 70
    assert len(whole.files) == 3
    assert len({file.number for file in whole.files}) == 3
    assert whole.next_file > max(file.number for file in whole.files)
    assert first["000009.sst"] == second["000031.sst"]
    assert first["000008.sst"] != second["000008.sst"]


@pytest.mark.parametrize(
    "other",
    [
        _table(8, 1, level=6),
        _table(8, 1, epoch=2),
        _table(8, 0),
        _table(8, 5, epoch=0),
    ],
    ids=["level", "epoch", "no identity", "no epoch"],
)
def test_parts_that_cannot_be_composed_are_refused(other):
    with pytest.raises(UnknownManifest):
        compose([Manifest((_table(8, 1),), 1, 9), Manifest((other,), 1, 9)])


def test_the_limits_of_a_field_are_those_of_rocksdb():
    assert module.TableFile(1, 0, 1, bytes(8), b"\xff" * 8, 0, 0).ends_before_last_key is False
    end = ((1 << 56) - 1 << 8 | 0xF).to_bytes(8, "little")
    assert module.TableFile(1, 0, 1, bytes(8), b"ab" + end, 0, 0).ends_before_last_key is True
