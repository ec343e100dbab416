"""Savepoints: snapshots that belong to their user, share no file with a checkpoint and can be moved."""

from .job import Ending, Job
from .taking import SavepointReport, SavepointType, savepoint

__all__ = ["Ending", "Job", "SavepointReport", "SavepointType", "savepoint"]
