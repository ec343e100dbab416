"""What a subtask needs of a checkpoint's keyed state: decided from the handles alone, nothing is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...backends.errors import CheckpointError, UsageError
from ..handles import KeyedStateHandle, KeyGroupRange, StateFile
from .key_groups import key_groups_between

FORMAT = "rocksdb"
#: Rows of a canonical savepoint.
PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class FilePlan:
    """Whether an SST file is needed, and why."""

    file: StateFile
    needed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PartPlan:
    """What is taken over from one handle.

    Args:
        wanted: key groups that come from here.
        reaches_out: whether a needed file reaches outside the handle's own range, as files do
            that a rescale clipped and no compaction rewrote since.
    """

    handle: KeyedStateHandle
    wanted: KeyGroupRange
    files: tuple[FilePlan, ...]
    reaches_out: bool

    @property
    def needed(self) -> tuple[StateFile, ...]:
        return tuple(each.file for each in self.files if each.needed)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How one subtask's state comes out of a checkpoint's handles.

    Args:
        parts: one per handle, also those that nothing is needed of.
    """

    key_groups: KeyGroupRange
    max_parallelism: int
    parts: tuple[PartPlan, ...]

    @property
    def sources(self) -> tuple[PartPlan, ...]:
        """The parts that bring files."""
        return tuple(part for part in self.parts if part.needed)

    @property
    def method(self) -> str:
        """How the database comes about.

        ``empty``, ``reopen`` (as it was), ``clip`` (a part of one database), ``compose`` (one out of
        several) or ``rows`` (of a canonical savepoint).
        """
        sources = self.sources
        if not sources:
            return "empty"
        if sources[0].handle.format == PARQUET:
            return "rows"
        if len(sources) > 1:
            return "compose"
        return "reopen" if sources[0].handle.key_groups == self.key_groups else "clip"

    @property
    def joins_as_it_is(self) -> bool:
        """Whether the parts become one database without rewriting a file.

        A file may reach out of its handle's range into another part only where that part has the
        same file on the same level, as the two halves of a database have that was split and not
        compacted since. Otherwise its deletions and dead rows would meet rows they must not.
        """
        placed = [{(file.handle, file.level) for file in part.needed} for part in self.parts]
        return all(
            (file.handle, file.level) in placed[index]
            for part in self.parts
            if part.reaches_out
            for file in part.needed
            for index, other in enumerate(self.parts)
            if other is not part and _reaches(file, other.wanted)
        )

    @property
    def bytes(self) -> int:
        """Of the SST files to download; a file that two parts share is downloaded once."""
        return sum(handle.size for handle in {file.handle for part in self.parts for file in part.needed})

    @property
    def bytes_saved(self) -> int:
        """Of the SST files that are not needed, of those handles that share a key group with the subtask."""
        sharing = (part for part in self.parts if len(part.wanted))
        handles = {each.file.handle for part in sharing for each in part.files}
        return sum(handle.size for handle in handles) - self.bytes

    def explain(self) -> Iterator[tuple[KeyedStateHandle, FilePlan]]:
        """Every SST file of the checkpoint with the reason for taking or leaving it."""
        for part in self.parts:
            for each in part.files:
                yield part.handle, each


def plan_restore(states: Sequence[KeyedStateHandle], key_groups: KeyGroupRange) -> RestorePlan:
    """Plan the restore of ``key_groups`` (see `statelift.transfer.handles.key_groups_of`).

    Raises:
        UsageError: the key groups are none, or more than there are.
        CheckpointError: the handles contradict each other, or lack some of the key groups.
    """
    max_parallelism = _common_maximum(states)
    if not 0 <= key_groups.first <= key_groups.last < max_parallelism:
        raise UsageError(f"key groups {key_groups.first} to {key_groups.last} of {max_parallelism}")
    _check_cover(states, key_groups)
    return RestorePlan(key_groups, max_parallelism, tuple(_part(state, key_groups) for state in states))


def _common_maximum(states: Sequence[KeyedStateHandle]) -> int:
    if not states:
        raise CheckpointError("the checkpoint has no keyed state")
    for state in states:
        if state.format not in {FORMAT, PARQUET}:
            raise CheckpointError(f"chk-{state.checkpoint_id}: keyed state of the unknown format {state.format!r}")
    if len({state.format for state in states}) > 1:
        raise CheckpointError(f"chk-{states[0].checkpoint_id}: subtasks disagree on the format of keyed state")
    maxima = {state.max_parallelism for state in states}
    if len(maxima) > 1:
        raise CheckpointError(f"chk-{states[0].checkpoint_id}: subtasks disagree on max_parallelism: {sorted(maxima)}")
    return maxima.pop()


def _check_cover(states: Sequence[KeyedStateHandle], key_groups: KeyGroupRange) -> None:
    """Every wanted key group must come from exactly one handle."""
    name = f"chk-{states[0].checkpoint_id}"
    behind = key_groups.first
    for each in sorted((state.key_groups for state in states if len(state.key_groups)), key=lambda each: each.first):
        common = each.intersection(key_groups)
        if not len(common):
            continue
        if common.first < behind:
            raise CheckpointError(f"{name}: two subtasks have key group {common.first}")
        if common.first > behind:
            break
        behind = common.last + 1
    if behind <= key_groups.last:
        raise CheckpointError(
            f"{name}: no subtask's state has key group {behind}", remedy="use a checkpoint with all of its subtasks"
        )


def _part(state: KeyedStateHandle, key_groups: KeyGroupRange) -> PartPlan:
    wanted = state.key_groups.intersection(key_groups)
    if state.key_groups == key_groups:
        same = tuple(FilePlan(file, True, "the key groups are the same") for file in state.shared)
        return PartPlan(state, wanted, same, False)
    files = tuple(_judge(file, wanted) for file in state.shared)
    reaches_out = any(each.needed and not _within(each.file, state.key_groups) for each in files)
    return PartPlan(state, wanted, files, reaches_out)


def _judge(file: StateFile, wanted: KeyGroupRange) -> FilePlan:
    if not len(wanted):
        return FilePlan(file, False, "its subtask has none of the key groups")
    own = groups_of(file)
    if own is None:
        return FilePlan(file, True, "its key range is not known")
    span = f"key groups {own.first} to {own.last}"
    if len(own.intersection(wanted)):
        return FilePlan(file, True, f"it has {span}")
    return FilePlan(file, False, f"it has {span}, outside {wanted.first} to {wanted.last}")


def groups_of(file: StateFile) -> KeyGroupRange | None:
    """The key groups that an SST file spans, or None where the handle does not say."""
    if file.smallest is None or file.largest is None:
        return None
    return key_groups_between(file.smallest, file.largest)


def _reaches(file: StateFile, wanted: KeyGroupRange) -> bool:
    own = groups_of(file)
    return len(wanted) > 0 if own is None else len(own.intersection(wanted)) > 0


def _within(file: StateFile, key_groups: KeyGroupRange) -> bool:
    own = groups_of(file)
    return own is not None and own.first >= key_groups.first and own.last <= key_groups.last
