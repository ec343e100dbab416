from __future__ import annotations

import pickle

import pytest

from statelift.backends.errors import CopyCancelled, CopyFailed, NoSpace, TransferError
from statelift.backends.request import CopyRequest


def _tree(root: type[TransferError]) -> list[type[TransferError]]:
    return [root, *(leaf for each in root.__subclasses__() for leaf in _tree(each))]


def _ours() -> list[type[TransferError]]:
    return [each for each in _tree(TransferError) if each.__module__.startswith("statelift.")]


@pytest.mark.parametrize("kind", [each for each in _ours() if each is not CopyFailed])
def test_every_error_pickles_whole(kind: type[TransferError]) -> None:
    request = CopyRequest("s3://b/k", "/disk/k")
    error = kind("it failed", remedy="mend it", request=request, backend="wire", transient=True)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "it failed (mend it)"
    assert (again.request, again.backend, again.transient) == (request, "wire", True)


def test_a_batch_s_failure_pickles_with_its_errors() -> None:
    failure = CopyFailed([NoSpace("full"), NoSpace("full")])
    again = pickle.loads(pickle.dumps(failure))
    assert [type(each) for each in again.errors] == [NoSpace, NoSpace]
    assert (str(again), again.shared) == (str(failure), failure.shared)


def test_a_cancellation_pickles_with_its_reason() -> None:
    assert pickle.loads(pickle.dumps(CopyCancelled("the user left"))).reason == "the user left"
