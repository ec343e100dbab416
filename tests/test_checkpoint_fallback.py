"""Falling back to an older checkpoint: only when asked to, and only from damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statelift.backends.errors import AccessDenied, CheckpointNotFound, CopyFailed
from statelift.transfer.checkpoint.fallback import with_fall_back
from statelift.transfer.cli import main
from statelift.transfer.keyed.database import KeyedState

from .test_checkpoint_examples import ROCKS, Subtask, coordinator, first_rocks, key_groups_of, rocks_checkpoint, tables
from .test_checkpoint_maintenance import Base


def two_checkpoints(base: Path, root: Path) -> tuple[set[str], dict[tuple[int, bytes], bytes]]:
    """CHK-1 and CHK-2, both retained: (files of CHK-2 alone, what CHK-1 holds)."""
    expected = first_rocks(base, root, 1)
    boss = coordinator(base)
    boss.retained = 2
    done = boss.latest
    assert done is not None
    database = Subtask.restored(done, root / "second", 0, 1)
    database.write("second")
    completed, _ = rocks_checkpoint(boss, [database])
    database.state.close()
    boss.close()
    return tables(completed) - tables(done), expected


@pytest.mark.parametrize("damage", ["missing", "short", "metadata"])
def test_a_damaged_checkpoint_is_named_and_left_for_the_one_before_it(tmp_path: Path, capsys, damage: str) -> None:
    base = tmp_path / "job"
    own, expected = two_checkpoints(base, tmp_path)
    victim = base / "chk-2" / "_metadata" if damage == "metadata" else Path(min(own))
    data = victim.read_bytes()
    victim.unlink()
    if damage != "missing":
        victim.write_bytes(data[:-1])
    words = ["restore", f"{base}/chk-2", "--subtask", "0", "--parallelism", "1", "--into", str(tmp_path / "into")]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert f"{base}/chk-2" in told
    assert damage == "metadata" or "key groups 0 to 7" in told
    assert not (tmp_path / "into").exists()
    assert main([*words, "--fall-back", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] == f"{base}/chk-1"
    assert f"{base}/chk-2" in found["fell_back"]
    with KeyedState.open(tmp_path / "into", configuration=ROCKS) as state:
        assert {(key_group, key): value for key_group, key, value in state.items()} == expected
        assert state.key_groups == key_groups_of(0, 1, 8)


def test_only_damage_falls_back(tmp_path: Path) -> None:
    job = Base(str(tmp_path / "job"))
    job.complete(1, "a")
    second = job.complete(2, "a")
    tried: list[str] = []

    def fail(error: Exception):
        def attempt(checkpoint: str) -> None:
            tried.append(checkpoint)
            raise error

        return attempt

    for error in (AccessDenied("no"), CheckpointNotFound("none"), CopyFailed([AccessDenied("no")])):
        tried.clear()
        with pytest.raises(type(error)):
            with_fall_back(job.store, second, fail(error))
        assert tried == [second]
