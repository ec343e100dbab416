"""``statelift checkpoint``: what is listed, verified, copied and deleted, and what never is."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statelift.backends.checksums import crc64nvme
from statelift.backends.errors import CheckpointError, SourceNotFound
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.copying import copy_checkpoint
from statelift.transfer.checkpoint.layout import CheckpointLocation
from statelift.transfer.checkpoint.metadata import CheckpointMetadata
from statelift.transfer.checkpoint.orphans import find_orphans, remove_orphans
from statelift.transfer.checkpoint.removal import remove_checkpoint
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.checkpoint.verification import verify
from statelift.transfer.cli import main
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import (
    FileHandle,
    InMemoryHandle,
    KeyedStateHandle,
    KeyGroupRange,
    RelativeFileHandle,
    SegmentHandle,
    StateFile,
)
from statelift.transfer.objects import Objects
from statelift.transfer.savepoint.taking import savepoint

BARE = Configuration(environ={})
Run = Callable[..., tuple[int, str, str]]
Orphans = Callable[[float], None]


class Base:
    """A base whose checkpoints consist of files with their name as content, on any store."""

    def __init__(self, base: str, configuration: Configuration = BARE) -> None:
        self.base = base
        self.configuration = configuration
        self.objects = Objects(configuration)
        self.store = CheckpointStore(configuration, objects=self.objects)

    def file(self, scope: str, name: str, checkpoint_id: int) -> RelativeFileHandle:
        data = content(name)
        handle = RelativeFileHandle(scope, name, len(data), crc64nvme(data), "etag")
        self.objects.write(CheckpointLocation(self.base, checkpoint_id).resolve(handle).uri, data)
        return handle

    def complete(self, checkpoint_id: int, *shared: object, properties: dict[str, str] | None = None) -> str:
        """A checkpoint of two subtasks that both name the shared files."""
        files = tuple(
            StateFile(f"{index:06d}.sst", self.file("shared", each, checkpoint_id) if isinstance(each, str) else each)
            for index, each in enumerate(shared)
        )
        states = tuple(
            KeyedStateHandle(
                KeyGroupRange(4 * subtask, 4 * subtask + 3),
                8,
                "db",
                checkpoint_id,
                files,
                (
                    StateFile("MANIFEST-1", self.file("exclusive", f"m{subtask}-{checkpoint_id}", checkpoint_id)),
                    StateFile("CURRENT", InMemoryHandle(b"MANIFEST-1\n")),
                ),
            )
            for subtask in range(2)
        )
        location = CheckpointLocation(self.base, checkpoint_id)
        metadata = CheckpointMetadata(checkpoint_id, 8, 2, states, created=1.7e9, properties=properties or {})
        self.store.write(location, metadata)
        return location.directory

    def problems(self, checkpoint: str, *, deep: bool = True) -> list[str]:
        location, metadata = self.store.read(checkpoint)
        with FileSystems(self.configuration) as systems:
            return [str(each) for each in verify(location, metadata, systems, deep=deep).problems]

    def copy(self, checkpoint: str, target: str):
        with FileSystems(self.configuration) as systems:
            return copy_checkpoint(checkpoint, target, self.store, systems)


def content(name: str) -> bytes:
    return name.encode() * 5000


@pytest.fixture
def job(tmp_path: Path) -> Base:
    return Base(str(tmp_path / "job"))


@pytest.fixture
def run(capsys) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def names_below(directory: str | Path) -> set[str]:
    return {os.path.relpath(os.path.join(at, name), directory) for at, _, names in os.walk(directory) for name in names}


# ---------------------------------------------------------------- ls, inspect


def test_ls_counts_files_once_and_says_what_is_shared(job: Base, run: Run) -> None:
    job.complete(1, "a", "b")
    job.complete(2, "b", "c")
    code, out, err = run("checkpoint", "ls", job.base, "--json")
    first, second = json.loads(out)["checkpoints"]
    assert (code, err) == (0, "")
    assert (first["id"], first["kind"], first["parallelism"], first["files"]) == (1, "incremental", 2, 4)
    inline = 2 * len(b"MANIFEST-1\n")
    assert first["bytes"] == sum(len(content(name)) for name in ("a", "b", "m0-1", "m1-1")) + inline
    assert [each["bytes_shared"] for each in (first, second)] == [len(content("b"))] * 2
    assert [each["files_shared"] for each in (first, second)] == [1, 1]
    lines = run("checkpoint", "ls", job.base)[1].splitlines()
    assert lines[1].split()[:2] == ["chk-1", "incremental"]
    assert len(lines) == 3


def test_ls_shows_a_damaged_checkpoint_and_fails(job: Base, run: Run) -> None:
    job.complete(1, "a")
    Path(job.complete(2, "a"), "_metadata").write_bytes(b"?")
    code, out, _ = run("checkpoint", "ls", job.base)
    assert code == 1
    assert out.splitlines()[2].split()[:2] == ["chk-2", "damaged"]
    found = json.loads(run("checkpoint", "ls", job.base, "--json")[1])
    assert not found["ok"]
    assert "chk-2" in found["checkpoints"][1]["error"]


def test_inspect_is_the_same_under_both_names(job: Base, run: Run) -> None:
    checkpoint = job.complete(1, "a")
    assert run("checkpoint", "inspect", checkpoint) == run("inspect", checkpoint)


def test_inspect_says_how_a_restore_would_get_the_files(job: Base, run: Run, tmp_path: Path) -> None:
    checkpoint = job.complete(1, "a")
    found = json.loads(run("checkpoint", "inspect", checkpoint, "--into", tmp_path / "new", "--json")[1])["transfers"]
    assert {each["method"]: each["files"] for each in found if "metadata" not in each["reason"]} == {
        "reuse": 2,
        "paths copy": 2,
    }
    words = ("checkpoint", "inspect", checkpoint, "--into", tmp_path / "new", "-c", "state.force-copy=true")
    assert "by paths copy: copying is forced" in run(*words)[1]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("action", ["ls", "orphans"])
def test_a_base_without_checkpoints_is_an_error(tmp_path: Path, run: Run, action: str) -> None:
    code, _, err = run("checkpoint", action, tmp_path)
    assert code == 1
    assert f"there is no checkpoint below {tmp_path}" in err


@pytest.mark.parametrize("words", [[], ["sl", "x"], ["rm"], ["orphans", "x", "--delete"]])
def test_wrong_words_are_wrong_usage(run: Run, words: list[str]) -> None:
    assert run("checkpoint", *words)[0] == 2


# ---------------------------------------------------------------- verify


def test_verify_names_file_subtask_and_checkpoint(job: Base, run: Run, tmp_path: Path) -> None:
    checkpoint = job.complete(1, "a", "b", "c")
    code, out, _ = run("checkpoint", "verify", checkpoint, "--deep")
    assert (code, out.partition(": ")[2]) == (0, "all read and compared\n")
    shared = tmp_path / "job" / "shared"
    (shared / "a").unlink()
    (shared / "b").write_bytes(content("b")[:-1])
    (shared / "c").write_bytes(content("d"))
    code, out, _ = run("checkpoint", "verify", checkpoint)
    assert code == 1
    assert out.splitlines()[0] == f"{checkpoint}, 000000.sst of subtask 0: {shared}/a is missing"
    assert f"{checkpoint}, 000001.sst of subtask 1: {shared}/b has 4999 bytes instead of 5000" in out
    assert "is corrupt" not in out
    found = json.loads(run("checkpoint", "verify", checkpoint, "--deep", "--json")[1])
    assert not found["ok"]
    assert [(each["file"], each["subtask"]) for each in found["problems"]] == [
        (f"{file:06d}.sst", subtask) for subtask in range(2) for file in range(3)
    ]
    assert "CRC64NVME" in found["problems"][2]["reason"]


def test_a_deep_verification_reads_segments_apart(job: Base) -> None:
    whole = job.file("shared", "many", 1)
    data = content("many")
    good = SegmentHandle(whole, 100, 50, crc64nvme(data[100:150]))
    bad = SegmentHandle(whole, 150, 50, crc64nvme(data[100:150]) ^ 1)
    checkpoint = job.complete(1, good, bad)
    assert {each.split(":")[0] for each in job.problems(checkpoint)} == {
        f"{checkpoint}, 000001.sst of subtask {subtask}" for subtask in range(2)
    }


def test_a_deep_verification_of_a_remote_checkpoint_uses_little_disk(
    bucket, configuration, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("statelift.transfer.checkpoint.verification._PIECE", 1000)
    monkeypatch.setattr("statelift.transfer.checkpoint.verification._WINDOW", 3000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    job = Base(f"s3://{bucket}/job", configuration)
    checkpoint = job.complete(1, "a", "b")
    most = 0
    original = FileSystems.copy

    def measured(self, requests, *args, **kwargs):
        nonlocal most
        report = original(self, requests, *args, **kwargs)
        most = max(most, sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file()))
        return report

    monkeypatch.setattr(FileSystems, "copy", measured)
    assert job.problems(checkpoint) == []
    assert 0 < most <= 3000
    assert list(scratch.iterdir()) == []
    job.objects.write(f"{job.base}/shared/b", content("x"))
    job.objects.delete([f"{job.base}/shared/a"])
    found = job.problems(checkpoint)
    assert [each.split(": ")[0] for each in found] == [
        f"{checkpoint}, 00000{file}.sst of subtask {subtask}" for subtask in range(2) for file in range(2)
    ]
    assert "is missing" in found[0]
    assert "is corrupt" in found[1]
    job.store.close()


# ---------------------------------------------------------------- cp


def test_a_copy_needs_nothing_but_its_base(job: Base, tmp_path: Path) -> None:
    foreign = tmp_path / "other" / "x"
    foreign.parent.mkdir()
    foreign.write_bytes(content("foreign"))
    absolute = FileHandle(str(foreign), len(content("foreign")), crc64nvme(content("foreign")))
    whole = job.file("shared", "many", 3)
    checkpoint = job.complete(
        3, "a", absolute, SegmentHandle(whole, 5, 10), properties={"claimed": '["/x"]', "job": "j"}
    )
    done = job.copy(checkpoint, str(tmp_path / "copy"))
    assert (done.kept, len(done.copy.files)) == (0, 5)
    shutil.rmtree(tmp_path / "job")
    foreign.unlink()
    moved = tmp_path / "moved"
    (tmp_path / "copy").rename(moved)
    assert job.problems(f"{moved}/chk-3") == []
    _, metadata = job.store.read(f"{moved}/chk-3")
    assert metadata.properties == {"job": "j"}  # the copy has no right to delete what the original claimed


def test_a_second_copy_brings_only_what_the_target_lacks(job: Base, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")
    job.copy(job.complete(1, "a", "b"), target)
    second = job.complete(2, "b", "c")
    done = job.copy(second, target)
    assert done.kept == 1
    assert {os.path.basename(each.request.destination) for each in done.copy.files} == {"c", "m0-2", "m1-2"}
    assert job.copy(second, target).copy.files == ()
    (tmp_path / "copy" / "shared" / "c").write_bytes(content("d"))
    (tmp_path / "copy" / "shared" / "b").unlink()
    repaired = job.copy(second, target)
    assert {os.path.basename(each.request.destination) for each in repaired.copy.files} == {"b", "c"}
    assert job.problems(f"{target}/chk-2") == []


def test_a_copy_is_its_own(job: Base, tmp_path: Path) -> None:
    job.copy(job.complete(1, "a"), str(tmp_path / "copy"))
    inodes = [os.stat(tmp_path / base / "shared" / "a").st_ino for base in ("job", "copy")]
    assert inodes[0] != inodes[1]


def test_another_checkpoint_of_that_number_is_left_alone(job: Base, tmp_path: Path, run: Run) -> None:
    other = Base(str(tmp_path / "other"))
    other.complete(1, "z")
    checkpoint = job.complete(1, "a")
    code, _, err = run("checkpoint", "cp", checkpoint, other.base)
    assert (code, "another checkpoint is there already" in err) == (1, True)
    assert other.problems(f"{other.base}/chk-1") == []
    assert run("checkpoint", "cp", checkpoint, job.base)[0] == 2


def test_a_copy_that_fails_shows_no_checkpoint(job: Base, tmp_path: Path, run: Run) -> None:
    checkpoint = job.complete(1, "a", "b")
    (tmp_path / "job" / "shared" / "b").unlink()
    target = tmp_path / "copy"
    assert run("checkpoint", "cp", checkpoint, target)[0] == 1
    assert not (target / "chk-1" / "_metadata").exists()
    job.file("shared", "b", 1)
    code, out, _ = run("checkpoint", "cp", checkpoint, target, "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert job.problems(f"{target}/chk-1") == []


def test_a_copy_on_one_endpoint_moves_no_data_through_the_client(moto_bucket, moto_configuration) -> None:
    job = Base(f"s3://{moto_bucket}/job", moto_configuration)
    done = job.copy(job.complete(1, "a", "b"), f"s3://{moto_bucket}/copy")
    assert done.copy.bytes_moved == 0
    assert job.problems(f"s3://{moto_bucket}/copy/chk-1") == []


# ---------------------------------------------------------------- rm


def test_rm_deletes_what_no_other_checkpoint_needs(job: Base, run: Run, tmp_path: Path) -> None:
    first = job.complete(1, "a", "b")
    job.complete(2, "b", "c")
    (tmp_path / "job" / "chk-1" / "left-over").write_bytes(b"?")
    (tmp_path / "job" / "shared" / "op-0").write_bytes(b"a running database's")
    code, out, _ = run("checkpoint", "rm", first, "--json")
    found = json.loads(out)
    assert (code, found["files"], found["files_kept"]) == (0, 4, 1)
    assert names_below(job.base) == {
        *("shared/b", "shared/c", "shared/op-0", "chk-2/_metadata", "chk-2/m0-2", "chk-2/m1-2")
    }
    assert job.problems(f"{job.base}/chk-2") == []
    assert not (tmp_path / "job" / "chk-1").exists()


@pytest.mark.parametrize("others", [0, 1])
def test_the_newest_is_not_deleted_unless_forced(job: Base, run: Run, others: int) -> None:
    for number in range(others + 1):
        newest = job.complete(number, f"f{number}")
    code, _, err = run("checkpoint", "rm", newest)
    assert (code, "--force" in err) == (1, True)
    assert job.problems(newest) == []
    assert run("checkpoint", "rm", newest, "--force")[0] == 0
    assert len(job.store.list(job.base)) == others


def test_nothing_is_deleted_while_another_checkpoint_is_damaged(job: Base, run: Run) -> None:
    first, second = job.complete(1, "a"), job.complete(2, "a")
    Path(second, "_metadata").write_bytes(b"?")
    before = names_below(job.base)
    assert run("checkpoint", "rm", first)[0] == 1
    assert run("checkpoint", "orphans", job.base, "--delete", "--older-than", "0s")[0] == 1
    assert names_below(job.base) == before


def test_a_damaged_checkpoint_goes_only_by_force(job: Base) -> None:
    first = job.complete(1, "a", "b")
    job.complete(2, "b")
    Path(first, "_metadata").write_bytes(b"?")
    with pytest.raises(CheckpointError):
        remove_checkpoint(job.store, first)
    gone = remove_checkpoint(job.store, first, force=True)
    assert {os.path.basename(each) for each in gone.files} == {"m0-1", "m1-1"}
    assert job.problems(f"{job.base}/chk-2") == []
    with pytest.raises(SourceNotFound):
        job.objects.size(f"{first}/_metadata")


def test_files_of_another_base_are_never_deleted(job: Base, tmp_path: Path) -> None:
    other = Base(str(tmp_path / "other"))
    theirs = other.complete(1, "z")
    location, metadata = other.store.read(theirs)
    handle = metadata.states[0].shared[0].handle
    assert isinstance(handle, RelativeFileHandle)
    mine = job.complete(2, FileHandle(location.resolve(handle).uri, handle.size, handle.crc64nvme))
    gone = remove_checkpoint(job.store, mine, force=True)
    assert gone.kept == (location.resolve(handle).uri,)
    assert other.problems(theirs) == []


def test_the_metadata_goes_first(job: Base, monkeypatch) -> None:
    first = job.complete(1, "a")
    job.complete(2, "b")
    deleted: list[str] = []
    original = Objects.delete

    def noted(self, uris):
        uris = list(uris)
        deleted.extend(uris)
        original(self, uris)

    monkeypatch.setattr(Objects, "delete", noted)
    remove_checkpoint(job.store, first)
    assert deleted[0] == f"{first}/_metadata"
    assert len(deleted) == 4


# ---------------------------------------------------------------- savepoints


@pytest.fixture
def taken(job: Base) -> str:
    """A savepoint below a base with one checkpoint."""
    checkpoint = job.complete(1, "a", "b")
    return savepoint(checkpoint, f"{job.base}/savepoints/one", job.configuration).location.directory


def test_ls_shows_savepoints_below_a_base_and_by_name(job: Base, run: Run, taken: str, tmp_path: Path) -> None:
    (tmp_path / "job" / "dataset").mkdir()
    (tmp_path / "job" / "dataset" / "_metadata").write_bytes(b"PAR1")
    code, out, _ = run("checkpoint", "ls", job.base)
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows if not set(row[0]) <= {"-"}] == [
        ("chk-1", "incremental"),
        ("savepoints/one", "savepoint"),
    ]
    assert code == 0
    found = json.loads(run("checkpoint", "ls", job.base, "--json")[1])["checkpoints"]
    assert [(each["checkpoint"], each["kind"]) for each in found] == [
        (f"{job.base}/chk-1", "incremental"),
        (taken, "savepoint"),
    ]
    assert (found[1]["bytes"], found[1]["bytes_shared"], found[1]["files_shared"]) == (found[0]["bytes"], 0, 0)
    for name in (taken, os.path.dirname(taken)):
        [only] = json.loads(run("checkpoint", "ls", name, "--json")[1])["checkpoints"]
        assert only == found[1]


def test_ls_shows_a_damaged_savepoint(job: Base, run: Run, taken: str) -> None:
    Path(taken, "_metadata").write_bytes(Path(taken, "_metadata").read_bytes()[:-1])
    code, out, _ = run("checkpoint", "ls", job.base)
    assert (code, [line.split()[:2] for line in out.splitlines()][-1]) == (1, ["savepoints/one", "damaged"])


@pytest.mark.parametrize("suffix", ["", "/", "/_metadata"])
def test_a_savepoint_is_inspected_and_verified(job: Base, run: Run, taken: str, suffix: str) -> None:
    shutil.rmtree(f"{job.base}/chk-1")
    shutil.rmtree(f"{job.base}/shared")
    code, out, _ = run("checkpoint", "inspect", taken + suffix, "--json")
    assert (code, json.loads(out)["checkpoint"]) == (0, taken)
    code, out, _ = run("checkpoint", "verify", taken + suffix, "--deep", "--json")
    found = json.loads(out)
    assert (code, found["files"], found["bytes_read"], found["unchecked"]) == (0, 4, found["bytes"], 0)
    [victim] = [name for name in os.listdir(taken) if Path(taken, name).read_bytes() == content("a")]
    Path(taken, victim).write_bytes(content("a")[:-1] + b"?")
    code, out, _ = run("checkpoint", "verify", taken + suffix, "--deep")
    assert (code, "CRC64NVME" in out, victim in out) == (1, True, True)


def test_a_savepoint_is_copied_to_a_directory(job: Base, run: Run, taken: str, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "one"
    code, out, _ = run("checkpoint", "cp", taken, target, "--json")
    assert (code, json.loads(out)["checkpoint"]) == (0, str(target))
    shutil.rmtree(job.base)
    assert job.problems(str(target)) == []
    assert job.store.read(str(target))[1].kind == "savepoint"
    again = json.loads(run("checkpoint", "cp", target, tmp_path / "third", "--json")[1])
    assert (again["files"], again["files_kept"]) == (4, 0)
    again = json.loads(run("checkpoint", "cp", target, tmp_path / "third", "--json")[1])
    assert (again["files"], again["files_kept"]) == (0, 4)
    code, _, err = run("checkpoint", "cp", target, tmp_path / "chk-4")
    assert (code, "a savepoint cannot have a checkpoint's name" in err) == (1, True)
    assert run("checkpoint", "cp", target, target)[0] == 2


def test_rm_of_a_savepoint_needs_force_and_leaves_its_users_own_files(
    job: Base, run: Run, taken: str, tmp_path: Path
) -> None:
    Path(taken, "README").write_bytes(b"taken before the upgrade")
    before = names_below(job.base)
    code, _, err = run("checkpoint", "rm", taken)
    assert (code, "--force" in err, names_below(job.base)) == (1, True, before)
    code, out, _ = run("checkpoint", "rm", taken, "--force", "--json")
    assert (code, json.loads(out)["files"], json.loads(out)["files_kept"]) == (0, 4, 0)
    assert os.listdir(taken) == ["README"]
    assert job.problems(f"{job.base}/chk-1") == []
    code, _, err = run("checkpoint", "rm", taken, "--force")
    assert (code, "there is no checkpoint" in err) == (1, True)


def test_rm_keeps_the_files_of_a_savepoint_that_a_checkpoint_around_it_uses(job: Base, run: Run, taken: str) -> None:
    location, metadata = job.store.read(taken)
    handle = metadata.states[0].shared[0].handle
    assert isinstance(handle, RelativeFileHandle)
    used = location.resolve(handle).uri
    job.complete(2, FileHandle(used, handle.size, handle.crc64nvme))
    found = json.loads(run("checkpoint", "rm", taken, "--force", "--json")[1])
    assert (found["files"], found["files_kept"]) == (3, 1)
    assert job.problems(f"{job.base}/chk-2") == []
    assert os.listdir(taken) == [os.path.basename(used)]


def test_rm_of_a_damaged_savepoint_takes_what_it_is_sure_of(job: Base, run: Run, taken: str, tmp_path: Path) -> None:
    metadata = Path(taken, "_metadata")
    metadata.write_bytes(metadata.read_bytes()[:-1])
    assert run("checkpoint", "rm", taken)[0] == 1
    assert len(os.listdir(taken)) == 5
    assert run("checkpoint", "rm", taken, "--force")[0] == 0
    assert not Path(taken).exists()
    metadata = tmp_path / "dataset" / "_metadata"
    metadata.parent.mkdir()
    metadata.write_bytes(b"PAR1")
    assert run("checkpoint", "rm", metadata.parent, "--force")[0] == 1
    assert metadata.exists()


# ---------------------------------------------------------------- bad input


def resealed(change: Callable[[dict], object]) -> Callable[[bytes], bytes]:
    """Metadata that was tampered with by somebody who knows how to seal it."""

    def tamper(document: bytes) -> bytes:
        body = json.loads(document.partition(b"\n")[2])
        change(body)
        data = json.dumps(body).encode()
        return f"statelift-checkpoint 1 {len(data)} {crc64nvme(data):016x}\n".encode() + data

    return tamper


def first_file(body: dict) -> dict:
    return body["states"][0]["shared"][0]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "garbage": (lambda _: b"\x00\xff" * 5000, "not a checkpoint's"),
    "truncated": (lambda data: data[:-1], "instead of"),
    "another version": (lambda data: data.replace(b"checkpoint 1 ", b"checkpoint 99 ", 1), "has version 99"),
    "unknown handle": (
        resealed(lambda body: first_file(body).update(kind="tape")),
        "unknown kind of state handle 'tape'",
    ),
    "negative size": (resealed(lambda body: first_file(body).update(size=-1)), "-1 is not a count"),
    "climbing path": (resealed(lambda body: first_file(body).update(path="../../x")), "leads out of its directory"),
    "climbing name": (resealed(lambda body: first_file(body).update(name="../x")), "leads out of its directory"),
    "two sizes": (resealed(lambda body: first_file(body).update(size=1)), "has two sizes"),
    "one name twice": (
        resealed(lambda body: body["states"][0]["shared"].append(first_file(body))),
        "has two files '000000.sst'",
    ),
    "no number": (resealed(lambda body: body.update(created=float("nan"))), "malformed"),
    "another's": (resealed(lambda body: body.update(checkpoint=5)), "the metadata is that of checkpoint 5"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_metadata_is_refused_by_name_everywhere(job: Base, run: Run, tmp_path: Path, damage: str) -> None:
    checkpoint = job.complete(1, "a")
    change, message = DAMAGES[damage]
    metadata = Path(checkpoint, "_metadata")
    metadata.write_bytes(change(metadata.read_bytes()))
    before = names_below(tmp_path)
    commands = [
        ("checkpoint", "inspect", checkpoint),
        ("checkpoint", "verify", checkpoint, "--deep"),
        ("checkpoint", "cp", checkpoint, tmp_path / "copy"),
        ("checkpoint", "rm", checkpoint),
        ("checkpoint", "orphans", job.base, "--delete", "--older-than", "0s"),
        ("savepoint", checkpoint, tmp_path / "sp"),
        ("restore", checkpoint, "--subtask", "0", "--parallelism", "1", "--into", tmp_path / "into"),
    ]
    for command in commands:
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (1, "", 1), command
        assert checkpoint in err
        assert message in err
    code, out, _ = run("checkpoint", "ls", job.base)
    assert (code, "damaged" in out) == (1, True)
    assert names_below(tmp_path) == before


# ---------------------------------------------------------------- orphans


@pytest.fixture
def orphans(monkeypatch) -> Orphans:
    """``orphans`` as it would be run that many seconds from now."""

    real = time.time

    def at(seconds: float) -> None:
        now = real() + seconds
        monkeypatch.setattr("statelift.transfer.checkpoint.orphans.time.time", lambda: now)

    return at


def test_orphans_are_listed_and_deleted_only_when_old(
    job: Base, run: Run, tmp_path: Path, monkeypatch, orphans: Orphans
) -> None:
    job.complete(1, "a")
    needed = names_below(job.base)
    old = tmp_path / "job" / "shared" / "old"
    old.write_bytes(b"1234")
    os.utime(tmp_path / "job" / "shared" / "a", (0, 0))
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("checkpoint", "orphans", job.base, "--json")[1])["orphans"] == []
    orphans(2 * 86400)
    # A relative path must not make needed files look like orphans.
    for base in (job.base, "job", "./job/"):
        found = json.loads(run("checkpoint", "orphans", base, "--json")[1])
        assert [each["uri"] for each in found["orphans"]] == [str(old)]
    assert run("checkpoint", "orphans", job.base, "--delete")[0] == 2
    assert run("checkpoint", "orphans", "job", "--delete", "--older-than", "3d")[0] == 0
    assert old.exists()
    assert run("checkpoint", "orphans", "job", "--delete", "--older-than", "1d")[0] == 0
    assert names_below(job.base) == needed
    assert run("checkpoint", "orphans", job.base, "--older-than", "a while")[0] == 2


def test_an_old_file_that_was_linked_into_a_checkpoint_just_now_is_young(job: Base, tmp_path: Path) -> None:
    job.complete(1, "a")
    written_long_ago = tmp_path / "000012.sst"
    written_long_ago.write_bytes(b"rows")
    os.utime(written_long_ago, (1, 1))
    os.link(written_long_ago, tmp_path / "job" / "shared" / "pending")
    assert remove_orphans(job.store, job.base, older_than=3600) == []
    assert [each.uri for each in remove_orphans(job.store, job.base, older_than=0)] == [f"{job.base}/shared/pending"]


def test_what_a_killed_savepoint_left_is_swept_and_savepoints_are_not(
    job: Base, run: Run, tmp_path: Path, orphans: Orphans
) -> None:
    checkpoint = job.complete(1, "a")
    whole, begun = f"{job.base}/savepoints/whole", tmp_path / "job" / "savepoints" / "begun"
    savepoint(checkpoint, whole, job.configuration)
    begun.mkdir()
    (begun / str(uuid.uuid4())).write_bytes(b"1")
    (begun / f"{uuid.uuid4()}.parquet").write_bytes(b"2")
    (begun / "_common_metadata").write_bytes(b"3")
    for theirs in ("dataset/_common_metadata", "dataset/part-0.parquet", f"nested/shared/op-0/{uuid.uuid4()}"):
        (tmp_path / "job" / theirs).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "job" / theirs).write_bytes(b"another program's")
    kept = {each for each in names_below(job.base) if "begun" not in each}
    for directory in (job.base, f"{job.base}/savepoints", begun):
        assert run("checkpoint", "orphans", directory, "--delete", "--older-than", "1d")[0] == 0
        orphans(2 * 86400)
        assert run("checkpoint", "orphans", directory, "--json", "--older-than", "3d")[1].count("uri") == 0
        found = json.loads(run("checkpoint", "orphans", directory, "--json")[1])["orphans"]
        assert {os.path.dirname(each["uri"]) for each in found} == {str(begun)}
        assert len(found) == 3
        orphans(0)
    orphans(2 * 86400)
    assert run("checkpoint", "orphans", f"{job.base}/savepoints", "--delete", "--older-than", "1d")[0] == 0
    assert names_below(job.base) == kept
    assert not begun.exists()
    assert job.problems(whole) == []


def test_a_savepoint_in_the_making_is_left_whole(job: Base, tmp_path: Path, orphans: Orphans) -> None:
    job.complete(1, "a")
    begun = tmp_path / "job" / "sp"
    begun.mkdir()
    names = [str(uuid.uuid4()) for _ in range(2)]
    (begun / names[0]).write_bytes(b"old")
    time.sleep(0.05)
    limit = time.time()
    time.sleep(0.05)
    (begun / names[1]).write_bytes(b"young")
    assert list(find_orphans(job.store, job.base, older_than=time.time() - limit)) == []
    assert len(list(find_orphans(job.store, job.base, older_than=0))) == 2


def test_files_of_a_savepoint_that_a_checkpoint_uses_are_no_orphans(job: Base, tmp_path: Path) -> None:
    """A claimed savepoint's metadata goes once it is subsumed; later checkpoints still name its files."""
    theirs = tmp_path / "job" / "sp" / str(uuid.uuid4())
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(content("z"))
    job.complete(1, FileHandle(str(theirs), len(content("z")), crc64nvme(content("z"))))
    assert remove_orphans(job.store, job.base, older_than=0) == []
    assert theirs.exists()


def test_a_damaged_savepoint_ends_the_sweep(job: Base, run: Run, tmp_path: Path) -> None:
    checkpoint = job.complete(1, "a")
    savepoint(checkpoint, f"{job.base}/sp", job.configuration)
    metadata = tmp_path / "job" / "sp" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-1])
    before = names_below(job.base)
    code, _, err = run("checkpoint", "orphans", job.base, "--delete", "--older-than", "0s")
    assert (code, f"{job.base}/sp" in err) == (1, True)
    assert names_below(job.base) == before


def test_metadata_of_a_copy_equals_but_for_etags(job: Base, tmp_path: Path) -> None:
    done = job.copy(job.complete(1, "a"), str(tmp_path / "copy"))
    _, original = job.store.read(f"{job.base}/chk-1")
    _, copied = job.store.read(done.location.directory)
    strip = replace(original.states[0].shared[0].handle, etag=None)  # type: ignore[type-var]
    assert copied.states[0].shared[0].handle == strip
    assert (copied.created, copied.kind) == (original.created, original.kind)
