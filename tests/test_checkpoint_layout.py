"""Where a checkpoint's files lie, and what its paths may not do."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelift.backends.errors import CheckpointError
from statelift.transfer.checkpoint.layout import CheckpointLocation, CopySource
from statelift.transfer.handles import FileHandle, RelativeFileHandle, SegmentHandle

LOCATION = CheckpointLocation("s3://state/job", 7)


@pytest.mark.parametrize(
    ("uri", "base", "number"),
    [
        ("s3://state/job/chk-7", "s3://state/job", 7),
        ("s3://state/job/chk-7/", "s3://state/job", 7),
        ("s3://state/job/chk-7/_metadata", "s3://state/job", 7),
        ("s3a://state/chk-0", "s3a://state", 0),
        ("/data/job/chk-12", "/data/job", 12),
        ("file:///data/job/chk-12", "file:///data/job", 12),
        ("s3://state/chk-1/chk-2", "s3://state/chk-1", 2),
    ],
)
def test_parse(uri: str, base: str, number: int) -> None:
    assert CheckpointLocation.parse(uri) == CheckpointLocation(base, number)


def test_parse_makes_a_relative_path_absolute(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CheckpointLocation.parse("chk-3").base == str(tmp_path)


@pytest.mark.parametrize(
    "uri", ["", "s3://state/job", "s3://chk-7", "s3://state/chk-", "s3://state/chk-07", "s3://state/chk--1", "chk-1/x"]
)
def test_parse_refuses_what_names_no_checkpoint(uri: str) -> None:
    with pytest.raises(CheckpointError, match="name <base>/chk-<number>"):
        CheckpointLocation.parse(uri)


@given(st.integers(0, 10**12), st.sampled_from(["s3://b/p", "/p/q", "file:///p", "memory://m"]))
def test_a_location_names_itself(number: int, base: str) -> None:
    location = CheckpointLocation(base, number)
    assert CheckpointLocation.parse(str(location)) == location
    assert CheckpointLocation.parse(location.metadata) == location


def test_scopes_lie_below_the_base_and_move_with_it() -> None:
    for base in ("s3://state/job", "/elsewhere"):
        location = CheckpointLocation(base, 7)
        for scope, directory in (("shared", "shared"), ("exclusive", "chk-7"), ("taskowned", "taskowned")):
            found = location.resolve(RelativeFileHandle(scope, "a", 5))
            assert found == CopySource(f"{base}/{directory}/a", 0, None, 5)


def test_resolve_of_files_and_segments() -> None:
    assert LOCATION.resolve(FileHandle("s3://other/x", 9)) == ("s3://other/x", 0, None, 9)
    segment = SegmentHandle(RelativeFileHandle("shared", "all", 100), 10, 20)
    assert LOCATION.resolve(segment) == ("s3://state/job/shared/all", 10, 20, 100)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(CheckpointError, match="chk-7: unknown scope 'private'"):
        LOCATION.resolve(RelativeFileHandle("private", "a", 5))


CLIMBING = [
    "..",
    "../a",
    "a/../../b",
    "a/..",
    "/etc/passwd",
    "//host/a",
    "a//b",
    ".",
    "./a",
    "a/.",
    "",
    "a/",
    "..\\a",
    "a\\..\\b",
    "C:\\a",
    "s3://other/a",
    "file:///etc/passwd",
    "a\nb",
    "a\x00",
]


@pytest.mark.parametrize("path", CLIMBING)
def test_a_relative_path_that_climbs_out_is_refused(path: str) -> None:
    for handle in (RelativeFileHandle("shared", path, 5), SegmentHandle(RelativeFileHandle("shared", path, 5), 0, 5)):
        with pytest.raises(CheckpointError, match=r"s3://state/job/chk-7: the path .* leads out"):
            LOCATION.resolve(handle)


@pytest.mark.parametrize("uri", ["s3://b/a/../../c", "/data/../etc/passwd", "file:///..", "s3://b/a\\..\\c"])
def test_an_absolute_path_that_climbs_is_refused(uri: str) -> None:
    with pytest.raises(CheckpointError, match="leads out"):
        LOCATION.resolve(FileHandle(uri, 1))


@given(st.text(alphabet="ab./\\:\n", max_size=12))
def test_what_is_accepted_stays_inside(path: str) -> None:
    location = CheckpointLocation("/base", 1)
    try:
        uri = location.resolve(RelativeFileHandle("shared", path, 0)).uri
    except CheckpointError:
        return
    assert os.path.normpath(uri) == uri
    assert uri.startswith("/base/shared/")


def test_names_with_dots_and_colons_are_no_climbing() -> None:
    for path in ("a..b", "...", "a/b.sst", "..a", "x:y", "with space", "é%2e%2e"):
        assert LOCATION.resolve(RelativeFileHandle("shared", path, 0)).uri.endswith(path)
