"""SIGKILL at any operation on storage: no checkpoint is lost, none shows half-made, and a sweep removes the rest."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from statelift.backends.closeables import CloseableRegistry
from statelift.backends.options import Configuration
from statelift.transfer.checkpoint.contents import sizes_of_files
from statelift.transfer.checkpoint.orphans import remove_orphans
from statelift.transfer.checkpoint.store import CheckpointStore
from statelift.transfer.checkpoint.verification import verify
from statelift.transfer.demo.s3_server import S3Server
from statelift.transfer.downloader import StateDownloader
from statelift.transfer.file_systems import FileSystems
from statelift.transfer.handles import KeyGroupRange
from statelift.transfer.keyed.database import KeyedState
from statelift.transfer.keyed.restore import plan_restore, restore

from .crashing import MOST, PHASES, Forker, Rows, World, prepare
from .servers.fault import Exchange, FaultServer, Rule

_CHANGING = ("PUT", "POST", "DELETE")


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    made = Forker()
    yield made
    made.close()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every phase begins with."""
    directory = tmp_path_factory.mktemp("prepared")
    world = World(str(directory / "root"), {}, str(directory / "scratch"), str(directory / "journal"))
    (directory / "scratch").mkdir()
    prepare(world)
    return directory / "root"


def fresh(prepared: Path, directory: Path) -> World:
    shutil.copytree(prepared, directory / "root")
    (directory / "scratch").mkdir()
    return World(str(directory / "root"), {}, str(directory / "scratch"), str(directory / "journal"))


class Survivors:
    """What is found after a process died."""

    def __init__(self, world: World, files: Path, directory: Path) -> None:
        self.world = world
        self.files = files  # where the objects of the world's root are files
        self.directory = directory
        self.configuration: Configuration = world.configuration
        self.store = CheckpointStore(self.configuration)
        journal = Path(world.journal)
        self.notes = journal.read_text().splitlines() if journal.exists() else []

    def check(self, phase: str) -> None:
        with self.store:
            self._check(phase)

    def _check(self, phase: str) -> None:
        found = self.snapshots()
        self.nothing_was_lost(phase, found)
        remove_orphans(self.store, self.world.base, older_than=0)
        assert self.snapshots() == found, "the sweep removed a snapshot"
        self.nothing_else_is_left(found)
        with FileSystems(self.configuration) as systems:
            for name, checkpoint in found.items():
                assert self.rows(name, systems) == self.world.rows(checkpoint), name

    def snapshots(self) -> dict[str, int]:
        """Every snapshot that shows, with the checkpoint whose state it shall have."""
        base = self.world.base
        locations = [*self.store.list(base), *self.store.others(base), *self.store.list(f"{self.world.root}/elsewhere")]
        return {str(each): self.store.read(str(each))[1].checkpoint_id for each in locations}

    def nothing_was_lost(self, phase: str, found: dict[str, int]) -> None:
        base = self.world.base
        kept = {number for number in (1, 2, 3) if f"{base}/chk-{number}" in found}
        gone = {1} if phase == "remove_oldest" else set()
        assert kept | gone >= {1, 2} or kept >= {2, 3}
        latest = self.store.latest(base)
        assert latest is not None
        assert latest.checkpoint_id == max(kept)
        assert kept >= {int(each.split()[1]) for each in self.notes if each.startswith("completed")}
        if phase != "remove_savepoint":
            assert f"{base}/savepoints/old" in found
        if "savepoint" in self.notes:
            assert self.world.target in found
        if "copied" in self.notes:
            assert f"{self.world.root}/elsewhere/chk-2" in found

    def nothing_else_is_left(self, found: dict[str, int]) -> None:
        needed = set()
        for name in found:
            location, metadata = self.store.read(name)
            needed |= {location.metadata, *sizes_of_files(location, metadata)}
        left = {
            f"{self.world.root}/{path.relative_to(self.files)}"
            for path in (self.files / "job").rglob("*")
            if path.is_file()
        }
        # An upload in parts that nobody completed is no object: this server keeps it in a hidden file.
        apart = ("/_epoch-", "/.rclone_temp_multipart_")
        assert {each for each in left - needed if not any(name in each for name in apart)} == set()

    def rows(self, name: str, systems: FileSystems) -> Rows:
        location, metadata = self.store.read(name)
        assert verify(location, metadata, systems).problems == ()
        into = self.directory / f"into-{len(os.listdir(self.directory))}"
        plan = plan_restore(metadata.states, KeyGroupRange(0, MOST - 1))
        restored, _ = restore(plan, location, into, StateDownloader(systems), CloseableRegistry())
        with KeyedState.open(restored, configuration=self.configuration) as state:
            return {key: value for _, key, value in state.items()}


def changes_of(phase: str, prepared: Path, directory: Path, forker: Forker) -> int:
    """How many changes a phase makes that is left alone; it must come to its end."""
    world = fresh(prepared, directory)
    assert forker.run(phase, world) == 0
    survivors = Survivors(world, Path(world.root), directory)
    survivors.check(phase)
    [count] = [int(each.split()[1]) for each in survivors.notes if each.startswith("changes")]
    return count


def kill_on_disk(phase: str, prepared: Path, directory: Path, forker: Forker, dies_at: int) -> None:
    directory.mkdir()
    world = fresh(prepared, directory)
    assert forker.run(phase, world, dies_at=dies_at) == -signal.SIGKILL
    Survivors(world, Path(world.root), directory).check(phase)
    shutil.rmtree(directory)


@pytest.mark.parametrize("phase", PHASES)
def test_killed_at_every_change_of_a_disk(phase: str, prepared: Path, tmp_path: Path, forker: Forker) -> None:
    (tmp_path / "whole").mkdir()
    for dies_at in range(1, changes_of(phase, prepared, tmp_path / "whole", forker) + 1):
        kill_on_disk(phase, prepared, tmp_path / str(dies_at), forker, dies_at)


class Executioner:
    """Stands in front of the store and kills the client at its n-th changing request, done by the store or not.

    Attributes:
        of_parts: which of the requests belonged to uploads in parts.
    """

    def __init__(self, forker: Forker, dies_at: int, *, done: bool) -> None:
        self.forker = forker
        self.dies_at = dies_at
        self.done = done
        self.of_parts: list[int] = []
        self.changes = 0
        self._lock = threading.Lock()

    @property
    def rule(self) -> Rule:
        return Rule(lambda request: request.method in _CHANGING, self, times=None)

    def __call__(self, exchange: Exchange) -> None:
        with self._lock:
            self.changes += 1
            number = self.changes
            if "upload" in exchange.request.target.lower():
                self.of_parts.append(number)
        if self.dies_at and number > self.dies_at:
            exchange.hang_up()  # it was sent before the client died, and never arrived
        last = number == self.dies_at
        answer = None if last and not self.done else exchange.forward()
        if last:
            os.kill(self.forker.pid, signal.SIGKILL)
        if answer is None or last:
            exchange.hang_up()
        else:
            exchange.answer(answer)


class Bucket:
    """A fresh bucket of the real server for each death."""

    def __init__(self, s3: S3Server, s3_root: Path, forker: Forker, prepared: Path) -> None:
        self.s3 = s3
        self.s3_root = s3_root
        self.forker = forker
        self.prepared = prepared

    def run(
        self, phase: str, directory: Path, dies_at: int = 0, *, done: bool = False, ballast: int = 0
    ) -> Executioner:
        """Run a phase and check what is left of it. Returns who has counted its changing requests."""
        name = f"crash-{uuid.uuid4().hex[:12]}"
        files = self.s3_root / name / "root"
        shutil.copytree(self.prepared, files)
        (directory / "scratch").mkdir(parents=True)
        executioner = Executioner(self.forker, dies_at, done=done)
        with FaultServer(self.s3.endpoint) as server:
            server.add(executioner.rule)
            options = {**self.s3.options, "s3.endpoint": server.endpoint, "wire.part-size": "5mb"}
            world = World(f"s3://{name}/root", options, str(directory / "scratch"), str(directory / "journal"), ballast)
            code = self.forker.run(phase, world)
        assert code == (-signal.SIGKILL if dies_at else 0)
        Survivors(replace(world, options=self.s3.options), files, directory).check(phase)
        shutil.rmtree(self.s3_root / name)
        return executioner


@pytest.fixture
def in_bucket(s3: S3Server, s3_root: Path, forker: Forker, prepared: Path) -> Bucket:
    return Bucket(s3, s3_root, forker, prepared)


@pytest.mark.parametrize("phase", PHASES)
def test_killed_at_some_requests_to_a_store(phase: str, tmp_path: Path, in_bucket: Bucket) -> None:
    total = in_bucket.run(phase, tmp_path / "whole").changes
    assert total >= 2
    chance = random.Random(phase)
    for dies_at in sorted(chance.sample(range(1, total + 1), min(2, total))):
        in_bucket.run(phase, tmp_path / str(dies_at), dies_at, done=chance.random() < 0.5)


def test_killed_within_an_upload_in_parts(tmp_path: Path, in_bucket: Bucket) -> None:
    ballast = 11 << 20
    of_parts = in_bucket.run("complete_one", tmp_path / "whole", ballast=ballast).of_parts
    assert len(of_parts) == 5, "created, three parts, completed"
    for dies_at in of_parts:
        in_bucket.run("complete_one", tmp_path / str(dies_at), dies_at, done=dies_at % 2 == 0, ballast=ballast)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_killed_at_every_request_to_a_store(phase: str, done: bool, tmp_path: Path, in_bucket: Bucket) -> None:
    for dies_at in range(1, in_bucket.run(phase, tmp_path / "whole").changes + 1):
        in_bucket.run(phase, tmp_path / str(dies_at), dies_at, done=done)
