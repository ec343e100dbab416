"""Random jobs: whatever happens to the state and however it is rescaled, every key keeps its value."""

from __future__ import annotations

import random

import pytest

from statelift.backends.options import Configuration

from .conftest import SMALL, Job, handles_of


def _live(job: Job, source: random.Random) -> None:
    for _ in range(source.randint(1, 3)):
        job.churn(source, source.choice([0, 10, 300, 2000]), deletes=source.choice([0.0, 0.25, 0.9]))
        for state in job.states:
            happening = source.random()
            if happening < 0.3:
                state.flush()
            elif happening < 0.4:
                state.compact()
            elif happening < 0.5:
                state.trim()


def _run(job: Job, source: random.Random, steps: int) -> None:
    job.begin(source.choice([1, 1, 2, 3]))
    for _ in range(steps):
        _live(job, source)
        job.check()
        reports = job.checkpoint(complete=source.random() < 0.7, full=source.random() < 0.1)
        if source.random() < 0.7:
            job.rescale(handles_of(reports), source.choice([1, 2, 3, 5]))
            job.check()


@pytest.mark.parametrize("seed", range(4))
def test_no_key_is_ever_lost_or_revived(tmp_path, seed):
    source = random.Random(seed)
    options = {**SMALL, "state.rocksdb.unsorted-share": source.choice(["0", "0.25", "1"])}
    maximum = source.choice([5, 128, 128, 32768])
    job = Job(tmp_path / "local", str(tmp_path / "base"), Configuration(options, environ={}), maximum)
    try:
        _run(job, source, 6)
    finally:
        job.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_no_key_is_ever_lost_or_revived_in_many_jobs(tmp_path, seed):
    source = random.Random(seed)
    options = {**SMALL, "state.rocksdb.unsorted-share": source.choice(["0", "0.25", "1"])}
    maximum = source.choice([5, 128, 128, 32768])
    job = Job(tmp_path / "local", str(tmp_path / "base"), Configuration(options, environ={}), maximum)
    try:
        _run(job, source, 15)
    finally:
        job.close()
