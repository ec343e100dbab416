"""Requests, locations, reports and checksums."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends import checksums
from statelift.backends.errors import UsageError
from statelift.backends.report import CopiedFile, CopyReport
from statelift.backends.request import CopyRequest, Location, locate

keys = st.text(min_size=1, max_size=40)


@given(st.sampled_from(["s3", "s3a", "S3", "s3n"]), keys)
def test_keys_are_taken_literally(scheme: str, key: str) -> None:
    assert locate(f"{scheme}://bucket/{key}") == Location("s3", "bucket", key)


@given(st.text(alphabet=st.characters(blacklist_characters="\0"), min_size=1, max_size=40))
def test_an_absolute_path_is_local_whatever_is_in_it(name: str) -> None:
    assert locate(f"/data/{name}") == Location("file", "", f"/data/{name}")


def test_a_path_with_a_scheme_further_inside_is_local() -> None:
    assert locate("dir/s3://b/k").is_local
    assert locate("file:///a%20b#c?d").key == "/a%20b#c?d"


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": -1},
        {"offset": -1},
        {"length": -1},
        {"size": 10, "offset": 11},
        {"size": 10, "offset": 5, "length": 6},
    ],
)
def test_ranges_outside_the_source_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        CopyRequest("s3://b/k", "/tmp/k", **arguments)  # type: ignore[arg-type]


@given(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(0, 100))
def test_what_is_expected_follows_from_size_and_range(size: int, offset: int, length: int | None) -> None:
    if offset + (length or 0) > size:
        return
    request = CopyRequest("a", "b", size=size, offset=offset, length=length)
    assert request.expected == (size - offset if length is None else length)


def test_a_report_tells_moved_bytes_from_linked_ones() -> None:
    request = CopyRequest("a", "b")
    report = CopyReport((CopiedFile(request, "wire", 5, 0.1), CopiedFile(request, "hard-link", 7, 0.1)))
    assert (report.bytes, report.bytes_moved, report.methods) == (12, 5, {"wire": 1, "hard-link": 1})
    assert CopyReport.joined([report, report], seconds=1.0).bytes == 24


def test_checksums_are_the_published_check_values() -> None:
    assert checksums.crc64nvme(b"123456789") == 0xAE8B14860A799888
    assert checksums.crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_parts_join(first: bytes, second: bytes) -> None:
    whole, parts = checksums.crc64nvme(first + second), (checksums.crc64nvme(first), checksums.crc64nvme(second))
    assert checksums.crc64nvme_joined(*parts, len(second)) == whole
    assert checksums.crc64nvme(second, parts[0]) == whole
    joined = checksums.crc32c_joined(checksums.crc32c(first), checksums.crc32c(second), len(second))
    assert joined == checksums.crc32c(first + second)


@given(st.binary(max_size=200))
def test_both_implementations_agree(data: bytes) -> None:
    slow64, slow32 = checksums._models()
    assert checksums.crc64nvme(data) == slow64.calc(data)
    assert checksums.crc32c(data) == slow32.calc(data)


@given(st.integers(0, (1 << 64) - 1))
def test_checksums_survive_being_written(value: int) -> None:
    assert checksums.from_text(checksums.to_base64(value)) == value
    assert checksums.from_text(f"{value:016x}") == value


@pytest.mark.parametrize("text", ["", "xyz", "AAAA", "zzzzzzzzzzzzzzzz", "AAAAAAAAAAA"])
def test_what_is_no_checksum_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a checksum"):
        checksums.from_text(text)


def test_a_descriptor_is_summed_in_place(tmp_path: Path) -> None:
    data = os.urandom((3 << 20) + 5)
    path = tmp_path / "file"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert checksums.crc64nvme_of_descriptor(fd, 7, 1 << 20) == checksums.crc64nvme(data[7 : 7 + (1 << 20)])
        assert checksums.crc32c_of_descriptor(fd) == checksums.crc32c(data)
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)
    assert checksums.crc64nvme_of_file(path) == checksums.crc64nvme(data)
