"""Keyed state on Spark executors: restored from checkpoints, read and written in tasks, checkpointed."""

from .job import CheckpointReport, checkpoint, complete_checkpoint, coordinated_checkpoint, encode_snapshot
from .options import options_from
from .restore import restore
from .state import TaskState, open_state

__all__ = [
    "CheckpointReport",
    "TaskState",
    "checkpoint",
    "complete_checkpoint",
    "coordinated_checkpoint",
    "encode_snapshot",
    "open_state",
    "options_from",
    "restore",
]
