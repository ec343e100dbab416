"""The contract, part one: what is copied arrives, whole, under the right name."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from statelift.backends import checksums
from statelift.backends.errors import UnsupportedCopy
from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.backends.report import CopyReport
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.bench.light_server import serve_light

from .places import MIB, BucketPlace, LocalPlace, Pair, make_bytes
from .suite import Suite

#: Pairs whose result only a server that keeps it can show.
KEPT = frozenset({"upload", "remote"})
SIZES = [0, 1, 64 << 10, 12 * MIB + 1]

AWKWARD = [
    "a name with spaces",
    " leading",
    "trailing ",
    "two  spaces",
    "it's",
    '"quoted"',
    "'",
    "a#b",
    "a?b=c",
    "*",
    "a*",
    "[x]",
    "{1}",
    "{a,b}",
    "%20",
    "%",
    "a+b",
    "é",
    "e\u0301",  # looks like the one before
    "日本",
    "-rf",
    "--help",
    ";",
    "a;b&c|d",
    "~",
    "$HOME",
    "`id`",
    "a\\b",
    "\\",
    "<>^!@,:=",
    "...",
    ".hidden",
    "name.tmp",
    "run cp x y",
    "[dir] a/{b}/%2F/c d",
    "x" * 200,
]


def at(endpoint: str) -> Configuration:
    """The configuration for a server that checks no signature."""
    options = {"s3.endpoint": endpoint, "s3.region": "us-east-1", "s3.access-key": "any", "s3.secret-key": "any"}
    return Configuration(options, environ={})


class Copying(Suite):
    """Sizes, names, ranges, checksums, progress."""

    def test_is_what_it_says(self, file_system: PathsCopyingFileSystem) -> None:
        assert isinstance(file_system, PathsCopyingFileSystem)
        assert file_system.name
        assert file_system.name.lower() == file_system.name

    def test_an_empty_list_is_a_no_op(self, file_system: PathsCopyingFileSystem) -> None:
        report = self.copy(file_system, [])
        assert report.files == ()
        assert report.bytes == 0

    @pytest.mark.parametrize("local", ["/tmp/file", "file:///tmp/file", "relative/file"])
    @pytest.mark.parametrize("remote", ["s3://bucket/key", "s3a://bucket/key"])
    def test_says_which_pairs_it_copies(self, file_system: PathsCopyingFileSystem, remote: str, local: str) -> None:
        said = {
            "download": file_system.can_copy_paths(remote, local),
            "upload": file_system.can_copy_paths(local, remote),
            "remote": file_system.can_copy_paths(remote, "s3://other/key"),
            "local": file_system.can_copy_paths(local, "/tmp/other"),
        }
        assert {kind for kind, can in said.items() if can} == self.traits.pairs

    @pytest.mark.parametrize("size", SIZES)
    def test_copies(self, file_system: PathsCopyingFileSystem, pair: Pair, size: int) -> None:
        data = make_bytes(size)
        request = pair.put("000123.sst", data, size=size)
        report = self.copy(file_system, [request])
        assert pair.destination.get("000123.sst") == data
        assert pair.source.get("000123.sst") == data
        self.check_report(report, [request], size)

    def check_report(self, report: CopyReport, requests: list[CopyRequest], size: int) -> None:
        assert Counter(file.request for file in report.files) == Counter(requests)
        assert report.bytes == size
        assert set(report.methods) <= self.traits.methods
        assert report.seconds > 0
        for file in report.files:
            assert file.seconds > 0
            assert file.verified in {"size", "crc32c", "crc64nvme"}

    @pytest.mark.parametrize("size", SIZES)
    def test_copies_what_it_knows_no_size_of(self, file_system: PathsCopyingFileSystem, pair: Pair, size: int) -> None:
        data = make_bytes(size)
        report = self.copy(file_system, [pair.put("a", data)])
        assert pair.destination.get("a") == data
        assert report.bytes == size

    def test_copies_names_that_mean_something_elsewhere(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        data = {name: make_bytes(100, seed) for seed, name in enumerate(AWKWARD)}
        report = self.copy(file_system, [pair.put(name, content) for name, content in data.items()])
        assert {name: pair.destination.get(name) for name in AWKWARD} == data
        assert pair.destination.names() >= set(AWKWARD)
        assert len(report.files) == len(AWKWARD)

    def test_a_newline_is_never_a_second_command(self, tmp_path: Path, here: LocalPlace, nothing_left: None) -> None:
        """Of the servers at hand only the light one has keys with a newline, and it keeps no uploads."""
        there = BucketPlace(tmp_path / "light" / "state")
        there.directory.mkdir(parents=True)
        with serve_light(tmp_path / "light") as endpoint, self.opened(at(endpoint)) as file_system:
            for kind in sorted(self.traits.pairs if not self.traits.newline else self.traits.pairs - KEPT):
                pair = self.paired(kind, here, there)
                pair.source.put("canary", b"canary")
                stolen = pair.request("canary", to="stolen")
                for seed, command in enumerate((f"cp {stolen.source} {stolen.destination}", "x", "run\n\n")):
                    self.check_newline(file_system, pair, f"{kind}\n{command}", make_bytes(100, seed))
                assert pair.destination.get("stolen") is None

    def check_newline(self, file_system: PathsCopyingFileSystem, pair: Pair, name: str, data: bytes) -> None:
        copy = pair.put(name, data)
        if self.traits.newline:
            self.copy(file_system, [copy])
            assert pair.destination.get(name) == data
        else:
            self.copy_fails(file_system, [copy], UnsupportedCopy)
            assert pair.destination.get(name) is None

    def test_takes_uris_in_every_form(
        self, file_system: PathsCopyingFileSystem, here: LocalPlace, there: BucketPlace
    ) -> None:
        for kind in sorted(self.traits.pairs):
            pair = self.paired(kind, here, there)
            pair.source.put(f"{kind}-a b", b"bytes")
            source, destination = pair.source.uri(f"{kind}-a b"), pair.destination.uri(f"{kind}-copy %20")
            forms = [
                uri.replace("s3://", "s3a://") if "://" in uri else f"file://{uri}" for uri in (source, destination)
            ]
            self.copy(file_system, [CopyRequest(*forms)])
            assert pair.destination.get(f"{kind}-copy %20") == b"bytes"

    def test_takes_a_path_relative_to_the_working_directory(
        self,
        file_system: PathsCopyingFileSystem,
        here: LocalPlace,
        there: BucketPlace,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(here.directory)
        for kind in sorted(self.traits.pairs - {"remote"}):
            pair = self.paired(kind, here, there)
            pair.source.put(f"{kind}", b"bytes")
            source, destination = (
                os.path.relpath(uri) if uri.startswith("/") else uri
                for uri in (pair.source.uri(kind), pair.destination.uri("below/" + kind))
            )
            self.copy(file_system, [CopyRequest(source, destination)])
            assert pair.destination.get("below/" + kind) == b"bytes"

    def test_makes_the_parents_and_nothing_else(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        before = pair.destination.names()
        self.copy(file_system, [pair.put("a", b"1", to="x/y/z/a"), pair.put("b", b"2", to="x/b")])
        assert pair.destination.get("x/y/z/a") == b"1"
        # A source may lie in the place of the destination.
        assert pair.destination.names() - before - {"a", "b", "copies/x/b", "copies/x/y/z/a"} == {"x/y/z/a", "x/b"}

    @pytest.mark.parametrize("old", [0, 10, 3 * MIB])
    def test_replaces_a_file(self, file_system: PathsCopyingFileSystem, pair: Pair, old: int) -> None:
        pair.destination.put("to", make_bytes(old, 1))
        self.copy(file_system, [pair.put("from", make_bytes(100_000), to="to")])
        assert pair.destination.get("to") == make_bytes(100_000)

    def test_replaces_a_name_and_not_the_file_behind_it(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair, here: LocalPlace
    ) -> None:
        landing_pair.destination.put("to", b"old")
        landing_pair.destination.put("sym", b"old")
        os.link(self.path(landing_pair, "to"), here.path("linked"))
        os.remove(self.path(landing_pair, "sym"))
        os.symlink(here.path("linked"), self.path(landing_pair, "sym"))
        landing_pair.source.put("from", b"new")
        self.copy(file_system, [landing_pair.request("from", to="to"), landing_pair.request("from", to="sym")])
        assert landing_pair.destination.get("to") == b"new"
        assert landing_pair.destination.get("sym") == b"new"
        assert here.get("linked") == b"old"

    def path(self, pair: Pair, name: str) -> str:
        assert isinstance(pair.destination, LocalPlace)
        return pair.destination.path(name)

    def test_a_landed_file_has_the_mode_that_the_umask_gives(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair
    ) -> None:
        old = os.umask(0o027)
        try:
            self.copy(file_system, [landing_pair.put("from", b"new", to="to")])
        finally:
            os.umask(old)
        assert os.stat(self.path(landing_pair, "to")).st_mode & 0o777 == 0o640

    @pytest.mark.parametrize(("offset", "length"), [(0, 10), (5, None), (100_000, 2 * MIB), (3 * MIB - 1, 1), (7, 0)])
    @pytest.mark.parametrize("sized", [True, False])
    def test_copies_a_range_or_refuses_it(
        self, file_system: PathsCopyingFileSystem, pair: Pair, offset: int, length: int | None, *, sized: bool
    ) -> None:
        data = make_bytes(3 * MIB)
        part = data[offset:] if length is None else data[offset : offset + length]
        known = {"size": len(data)} if sized else {}
        copy = pair.put("a", data, offset=offset, length=length, crc64nvme=checksums.crc64nvme(part), **known)
        if pair.kind in self.traits.ranges:
            report = self.copy(file_system, [copy])
            assert pair.destination.get("a") == part
            assert report.bytes == len(part)
        else:
            self.copy_fails(file_system, [copy], UnsupportedCopy)
            assert pair.destination.get("a") is None or pair.kind == "local"

    def test_copies_two_ranges_of_one_file(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        if pair.kind not in self.traits.ranges:
            pytest.skip("copies no ranges of this pair")
        data = make_bytes(MIB)
        pair.source.put("a", data)
        halves = [pair.request("a", to=f"half-{half}", offset=half * 1000, length=1000) for half in range(2)]
        self.copy(file_system, halves)
        assert [pair.destination.get(f"half-{half}") for half in range(2)] == [data[:1000], data[1000:2000]]

    @pytest.mark.parametrize("size", [0, 1, 3 * MIB])
    @pytest.mark.parametrize("name", ["crc64nvme", "crc32c"])
    def test_verifies_the_checksum_of_the_request(
        self, file_system: PathsCopyingFileSystem, checked_pair: Pair, name: str, size: int
    ) -> None:
        data = make_bytes(size)
        checksum = getattr(checksums, name)(data)
        report = self.copy(file_system, [checked_pair.put("a", data, size=size, **{name: checksum})])
        assert report.files[0].verified == name
        assert checked_pair.destination.get("a") == data
        if name == "crc64nvme":
            assert report.files[0].crc64nvme in {None, checksum}

    def test_a_reported_checksum_is_right(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        data = make_bytes(200_000)
        report = self.copy(file_system, [pair.put("a", data)])
        assert report.files[0].crc64nvme in {None, checksums.crc64nvme(data)}

    def test_copies_many_small_files(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        data = {f"{number:03}.sst": make_bytes(4096, number) for number in range(200)}
        requests = [pair.put(name, content, size=4096) for name, content in data.items()]
        report = self.copy(file_system, requests)
        assert {name: pair.destination.get(name) for name in data} == data
        self.check_report(report, requests, 200 * 4096)

    def test_progress_sums_to_the_bytes(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        sizes = {"a": 5 * MIB, "b": 12 * MIB + 1, "c": 1, "d": 0}
        requests = [pair.put(name, make_bytes(size)) for name, size in sizes.items()]
        moved: Counter[CopyRequest] = Counter()
        lock = threading.Lock()

        def count(request: CopyRequest, number: int) -> None:
            with lock:
                moved[request] += number

        self.copy(file_system, requests, progress=count)
        assert {request: moved[request] for request in requests} == dict(zip(requests, sizes.values(), strict=True))

    def test_copies_over_tls(
        self,
        s3_pair: Pair,
        tls_configuration: Configuration,
        nothing_left: None,
    ) -> None:
        data = make_bytes(6 * MIB + 1)
        with self.opened(tls_configuration) as file_system:
            self.copy(file_system, [s3_pair.put("a", data, to="b"), s3_pair.put("c", b"small", to="d")])
        assert s3_pair.destination.get("b") == data
        assert s3_pair.destination.get("d") == b"small"

    def test_leaves_no_multipart_upload(
        self, file_system: PathsCopyingFileSystem, s3_pair: Pair, configuration: Configuration, there: BucketPlace
    ) -> None:
        self.copy(file_system, [s3_pair.put("a", make_bytes(20 * MIB), to="b")])
        assert uploads(configuration, there) == []

    def test_refuses_what_it_cannot_copy(self, file_system: PathsCopyingFileSystem, here: LocalPlace) -> None:
        here.put("a", b"1")
        pair = ("gopher://host/a", here.uri("b"))
        assert not file_system.can_copy_paths(*pair)
        self.copy_fails(file_system, [CopyRequest(*pair)], UnsupportedCopy)
        assert here.names() == {"a"}


def uploads(configuration: Configuration, place: BucketPlace) -> list[str]:
    """Keys of the unfinished multipart uploads in a bucket."""
    access = S3Access(configuration.of(S3Options))
    try:
        answer = access.client().list_multipart_uploads(Bucket=place.directory.name)
        return [each["Key"] for each in answer.get("Uploads") or ()]
    except access.client().exceptions.ClientError:
        # rclone answers with an error where a bucket has never had one.
        return []
    finally:
        access.close()
