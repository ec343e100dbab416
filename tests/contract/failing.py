"""The contract, part two: what fails says so, names its cause, and leaves the destination as it was."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from statelift.backends import checksums
from statelift.backends.errors import (
    AccessDenied,
    ConnectionFailed,
    DestinationError,
    IntegrityError,
    NoSpace,
    SourceNotFound,
    TransferError,
)
from statelift.backends.options import Configuration
from statelift.backends.paths_copying import PathsCopyingFileSystem
from statelift.backends.request import CopyRequest
from statelift.backends.s3_access import S3Access
from statelift.backends.s3_options import S3Options
from statelift.transfer.demo.s3_server import S3Server

from ..servers.disks import read_only_disk, small_disk
from .places import MIB, BucketPlace, LocalPlace, Pair, make_bytes
from .suite import Suite

SECRET = "a-secret-that-nobody-may-see"


class Failing(Suite):
    """Sources, destinations and stores that do not do their part."""

    def test_a_missing_source_is_not_found(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        failure = self.copy_fails(file_system, [pair.request("none", to="to")], SourceNotFound)
        assert isinstance(failure.errors[0], FileNotFoundError)
        assert "none" in str(failure)
        assert pair.destination.get("to") is None
        assert failure.done == ()

    def test_a_missing_bucket_is_not_found(self, file_system: PathsCopyingFileSystem, here: LocalPlace) -> None:
        here.put("a", b"1")
        for kind, source, destination in (
            ("download", "s3://no-such-bucket/a", here.uri("b")),
            ("upload", here.uri("a"), "s3://no-such-bucket/b"),
            ("remote", "s3://no-such-bucket/a", "s3://no-such-bucket/b"),
        ):
            if kind in self.traits.pairs:
                failure = self.copy_fails(file_system, [CopyRequest(source, destination, size=1)], SourceNotFound)
                assert "no-such-bucket" in str(failure)
        assert here.names() == {"a"}

    def test_one_failure_leaves_the_others_done(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        requests = [pair.put(f"from-{number}", make_bytes(1000, number), to=f"to-{number}") for number in range(6)]
        requests[2:2] = [pair.request("none-1", to="bad-1"), pair.request("none-2", to="bad-2")]
        failure = self.copy_fails(file_system, requests, SourceNotFound, fail_fast=False)
        assert {error.request for error in failure.errors} == set(requests[2:4])
        assert {file.request for file in failure.done} == {*requests[:2], *requests[4:]}
        assert [pair.destination.get(f"to-{number}") for number in range(6)] == [
            make_bytes(1000, number) for number in range(6)
        ]
        assert pair.destination.get("bad-1") is None
        assert pickle.loads(pickle.dumps(failure)).errors[0].request in requests[2:4]

    def test_fails_fast_and_says_what_is_done(self, slow_file_system: PathsCopyingFileSystem, s3_pair: Pair) -> None:
        # The missing one comes first, because its size is unknown; the others take 40 s.
        requests = [s3_pair.request("none", to="bad")]
        requests += [
            s3_pair.put(f"from-{number}", make_bytes(MIB), to=f"to-{number}", size=MIB) for number in range(40)
        ]
        if s3_pair.kind == "remote":
            pytest.skip("a copy within the server cannot be slowed down")
        started = time.monotonic()
        failure = self.copy_fails(slow_file_system, requests, SourceNotFound)
        assert time.monotonic() - started < 20
        self.check_done(s3_pair, requests[1:], {file.request for file in failure.done})

    def check_done(self, pair: Pair, requests: list[CopyRequest], done: set[CopyRequest]) -> None:
        """A destination exists if and only if its request is done."""
        found = {request for request in requests if pair.destination.get(os.path.basename(request.destination))}
        assert found == done

    def test_an_old_file_survives_a_failed_copy(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        for name in ("to-1", "to-2"):
            pair.destination.put(name, b"old")
        requests = [pair.request("none", to="to-1"), pair.put("from", make_bytes(5000), to="to-2", size=4999)]
        self.copy_fails(file_system, requests, TransferError, fail_fast=False)
        assert pair.destination.get("to-1") == b"old"
        assert pair.destination.get("to-2") == b"old"

    @pytest.mark.parametrize("size", [1, 64 << 10, 9 * MIB])
    @pytest.mark.parametrize("wrong", [-1, 1, 1000])
    def test_a_wrong_size_is_an_integrity_error(
        self, file_system: PathsCopyingFileSystem, pair: Pair, size: int, wrong: int
    ) -> None:
        copy = pair.put("from", make_bytes(size), to="to", size=size + wrong)
        failure = self.copy_fails(file_system, [copy], IntegrityError)
        assert pair.destination.get("to") is None
        assert "to" in str(failure) or "from" in str(failure)

    @pytest.mark.parametrize("size", [0, 100, 9 * MIB])
    @pytest.mark.parametrize("name", ["crc64nvme", "crc32c"])
    def test_a_wrong_checksum_is_an_integrity_error(
        self, file_system: PathsCopyingFileSystem, checked_pair: Pair, name: str, size: int
    ) -> None:
        data = make_bytes(size)
        wrong = getattr(checksums, name)(data) ^ 1
        copy = checked_pair.put("from", data, to="to", size=size, **{name: wrong})
        self.copy_fails(file_system, [copy], IntegrityError)
        assert checked_pair.destination.get("to") is None

    def test_a_checksum_that_the_store_returns_is_verified(
        self,
        file_system: PathsCopyingFileSystem,
        configuration: Configuration,
        here: LocalPlace,
        there: BucketPlace,
    ) -> None:
        if "download" not in self.traits.pairs:
            pytest.skip("downloads nothing")
        access = S3Access(configuration.of(S3Options))
        data = make_bytes(MIB, 1)
        known = checksums.to_base64(checksums.crc64nvme(data))
        access.client().put_object(Bucket=there.directory.name, Key="from", Body=data, ChecksumCRC64NVME=known)
        access.close()
        pair = self.paired("download", here, there)
        report = self.copy(file_system, [pair.request("from", to="good")])
        assert report.files[0].verified == "crc64nvme"
        # The store takes the file for the one that it knows the checksum of: bits that rot do so in place.
        before = (there.directory / "from").stat()
        (there.directory / "from").write_bytes(make_bytes(MIB, 2))
        os.utime(there.directory / "from", ns=(before.st_atime_ns, before.st_mtime_ns))
        self.copy_fails(file_system, [pair.request("from", to="bad")], IntegrityError)
        assert here.names() == {"good"}

    def test_a_range_outside_the_source_is_an_error(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        pair.source.put("from", make_bytes(1000))
        for offset, length in ((900, 200), (5000, 10)):
            copy = pair.request("from", to="to", offset=offset, length=length)
            self.copy_fails(file_system, [copy], TransferError)
        assert pair.destination.get("to") is None

    def test_a_directory_is_not_replaced(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair, here: LocalPlace
    ) -> None:
        landing_pair.destination.put("to/inside", b"old")
        failure = self.copy_fails(file_system, [landing_pair.put("from", b"new", to="to")], DestinationError)
        assert isinstance(failure.errors[0], OSError)
        assert landing_pair.destination.get("to/inside") == b"old"

    def test_a_directory_is_not_a_source(self, file_system: PathsCopyingFileSystem, pair: Pair) -> None:
        pair.source.put("from/inside", b"1")
        self.copy_fails(file_system, [pair.request("from", to="to")], TransferError)
        assert pair.destination.get("to") is None
        assert pair.destination.get("to/inside") is None

    def test_a_file_in_the_place_of_a_parent_is_an_error(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair
    ) -> None:
        landing_pair.destination.put("file", b"old")
        copy = landing_pair.put("from", b"new", to="file/below/to")
        self.copy_fails(file_system, [copy], DestinationError)
        assert landing_pair.destination.get("file") == b"old"

    def test_an_impossible_name_is_an_error(self, file_system: PathsCopyingFileSystem, landing_pair: Pair) -> None:
        copy = landing_pair.put("from", b"new", to="x" * 300)
        self.copy_fails(file_system, [copy], DestinationError)
        landing_pair.source.put("from", b"new")
        copy = landing_pair.request("from", to="nul\0inside")
        self.copy_fails(file_system, [copy], TransferError)

    @pytest.fixture
    def read_only(self, tmp_path: Path) -> Iterator[Path]:
        with read_only_disk(tmp_path / "read-only") as disk:
            yield disk

    def test_a_read_only_destination_is_an_error(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair, read_only: Path
    ) -> None:
        source = landing_pair.source.put("from", b"new")
        for name in ("old", "new", "below/new"):
            failure = self.copy_fails(file_system, [CopyRequest(source, str(read_only / name))], DestinationError)
            assert "ead-only" in str(failure)
        assert (read_only / "old").read_bytes() == b"old"

    @pytest.fixture
    def small(self, tmp_path: Path) -> Iterator[LocalPlace]:
        with small_disk(tmp_path / "small", 4 * MIB) as disk:
            yield LocalPlace(disk)

    @pytest.mark.parametrize("sized", [True, False])
    def test_a_full_disk_is_no_space(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair, small: LocalPlace, *, sized: bool
    ) -> None:
        small.put("old", b"old")
        source = landing_pair.source.put("from", make_bytes(6 * MIB))
        requests = [CopyRequest(source, small.uri(name), size=6 * MIB if sized else None) for name in ("old", "new")]
        failure = self.copy_fails(file_system, requests, NoSpace, fail_fast=False)
        assert failure.done == ()
        assert small.names() == {"old"}
        assert small.get("old") == b"old"
        assert small.staged() == []

    def test_files_that_fit_one_by_one_may_not_fit_together(
        self, file_system: PathsCopyingFileSystem, landing_pair: Pair, small: LocalPlace
    ) -> None:
        source = landing_pair.source.put("from", make_bytes(MIB))
        requests = [CopyRequest(source, small.uri(f"{number}")) for number in range(6)]
        failure = self.copy_fails(file_system, requests, NoSpace)
        assert small.names() == {os.path.basename(file.request.destination) for file in failure.done}
        assert small.staged() == []

    @pytest.mark.parametrize(
        "wrong",
        [
            {"s3.secret-key": SECRET},
            {"s3.access-key": "nobody", "s3.secret-key": SECRET},
            {"s3.access-key": "", "s3.secret-key": "", "s3.anonymous": True},
        ],
        ids=["secret", "user", "anonymous"],
    )
    def test_wrong_credentials_are_denied(
        self, s3: S3Server, s3_pair: Pair, nothing_left: None, wrong: dict[str, object]
    ) -> None:
        copy = s3_pair.put("from", b"new", to="to", size=3)
        configuration = Configuration(
            {key: value for key, value in {**s3.options, **wrong}.items() if value}, environ={}
        )
        with self.opened(configuration) as file_system:
            failure = self.copy_fails(file_system, [copy], AccessDenied)
        assert isinstance(failure.errors[0], PermissionError)
        assert failure.errors[0].remedy
        self.check_secret(failure)
        assert s3_pair.destination.get("to") is None

    def check_secret(self, failure: TransferError) -> None:
        """No secret in what anybody prints, logs or sends of an error, its causes included."""
        error: BaseException | None = failure
        seen = [repr(failure), str(failure)]
        for each in getattr(failure, "errors", ()):
            error = each
            while error is not None:
                seen += [repr(error), str(error)]
                error = error.__cause__ or error.__context__
        assert not [text for text in seen if SECRET in text]
        assert SECRET.encode() not in pickle.dumps(failure)

    def test_no_credentials_at_all_are_denied(self, s3: S3Server, s3_pair: Pair, nothing_left: None) -> None:
        options = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1"}
        with self.opened(Configuration(options, environ={})) as file_system:
            failure = self.copy_fails(file_system, [s3_pair.put("from", b"new", to="to")], AccessDenied)
        assert "s3.access-key" in str(failure)

    def test_a_refused_connection_fails_within_seconds(self, s3: S3Server, s3_pair: Pair, nothing_left: None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        configuration = Configuration({**s3.options, "s3.endpoint": f"http://127.0.0.1:{port}"}, environ={})
        started = time.monotonic()
        with self.opened(configuration) as file_system:
            failure = self.copy_fails(file_system, [s3_pair.put("from", b"new", to="to")], ConnectionFailed)
        assert time.monotonic() - started < 20
        assert isinstance(failure.errors[0], ConnectionError)
        assert s3_pair.destination.get("to") is None

    def test_an_unknown_host_fails_within_seconds(self, s3: S3Server, s3_pair: Pair, nothing_left: None) -> None:
        configuration = Configuration({**s3.options, "s3.endpoint": "http://no-such-host.invalid:9"}, environ={})
        started = time.monotonic()
        with self.opened(configuration) as file_system:
            self.copy_fails(file_system, [s3_pair.put("from", b"new", to="to")], ConnectionFailed)
        assert time.monotonic() - started < 30

    def test_an_untrusted_certificate_is_refused(self, tls_s3: S3Server, s3_pair: Pair, nothing_left: None) -> None:
        with self.opened(Configuration(tls_s3.options, environ={})) as file_system:
            failure = self.copy_fails(file_system, [s3_pair.put("from", b"new", to="to")], ConnectionFailed)
        assert "certificate" in str(failure).lower()
        assert s3_pair.destination.get("to") is None

    def test_a_store_that_stands_still_is_noticed(
        self, s3: S3Server, s3_pair: Pair, configuration: Configuration, nothing_left: None
    ) -> None:
        from statelift.backends.errors import StalledTransfer

        from ..servers.proxy import SlowProxy

        copy = s3_pair.put("from", make_bytes(2 * MIB), to="to", size=2 * MIB)
        with SlowProxy(s3.endpoint, rate=0) as proxy:
            held = configuration.with_arguments(
                {"s3.endpoint": proxy.endpoint, "transfer.stall-timeout": "1s", "transfer.retries": 0}
            )
            started = time.monotonic()
            with self.opened(held) as file_system:
                self.copy_fails(file_system, [copy], StalledTransfer)
            assert time.monotonic() - started < 30
        assert s3_pair.destination.get("to") is None
