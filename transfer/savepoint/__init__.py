"""Savepoints: snapshots that belong to their user, share no file with a checkpoint and can be moved."""
