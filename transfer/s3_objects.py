"""Small objects on S3."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from ..backends.errors import SourceNotFound, StalledTransfer, TransferError
from ..backends.options import Configuration
from ..backends.request import locate
from ..backends.s3_access import S3Access
from ..backends.s3_errors import store_error, translating
from ..backends.s3_options import S3Options
from ..backends.transfer_options import TransferOptions
from ..backends.wire.file_system import WireFileSystem
from .stored_objects import StoredObject, first_of_many, taken

_DELETED_AT_ONCE = 1000  # DeleteObjects takes no more (Amazon S3 API reference)
_DELETE_ATTEMPTS = 5
_TRANSIENT = {"InternalError", "SlowDown", "ServiceUnavailable", "OperationAborted", "RequestTimeout"}


class S3Objects:
    def __init__(self, configuration: Configuration) -> None:
        self._access = S3Access(configuration.of(S3Options), configuration.of(TransferOptions))
        self._wire = WireFileSystem(configuration)
        self._encryption = _encryption(self._access.options)

    def _client(self) -> Any:
        return self._access.client()  # botocore makes its methods at run time

    def _at(self, uri: str) -> tuple[Any, dict[str, str]]:
        location = locate(uri)
        return self._client(), {"Bucket": location.bucket, "Key": location.key}

    def read(self, uri: str, at_most: int | None = None) -> bytes:
        # A task that restores reads one object; botocore's import would cost it 0.2 s of CPU.
        return self._wire.read(uri, at_most=at_most)

    def write(self, uri: str, data: bytes, *, only_if_absent: bool) -> None:
        with translating(uri):
            client, at = self._at(uri)
            if not only_if_absent:
                client.put_object(**at, Body=data, **self._encryption)
            elif self._present(uri) or not self._put_if_absent(uri, data):
                raise taken(uri)

    def _present(self, uri: str) -> bool:
        # Also needed where If-None-Match is honoured: many stores ignore the header.
        try:
            self.size(uri)
        except SourceNotFound:
            return False
        return True

    def _put_if_absent(self, uri: str, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        client, at = self._at(uri)
        try:
            client.put_object(**at, Body=data, IfNoneMatch="*", **self._encryption)
        except ClientError as error:
            match str(error.response.get("Error", {}).get("Code")):
                case "NotImplemented" | "501":
                    client.put_object(**at, Body=data, **self._encryption)
                case "PreconditionFailed" | "412" | "ConditionalRequestConflict" | "409":
                    # Our own first attempt may have been stored and only its answer lost.
                    return self.read(uri) == data
                case _:
                    raise
        return True

    def size(self, uri: str) -> int:
        with translating(uri):
            client, at = self._at(uri)
            return int(client.head_object(**at)["ContentLength"])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        location = locate(prefix)
        root = prefix[: len(prefix) - len(location.key)] if location.key else prefix.rstrip("/") + "/"
        with translating(prefix):
            pages = self._client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=location.bucket, Prefix=location.key):
                for each in page.get("Contents", ()):
                    yield StoredObject(root + each["Key"], int(each["Size"]), each["LastModified"].timestamp())

    def delete(self, uris: Sequence[str]) -> None:
        with first_of_many() as trying:
            for bucket, group in groupby(sorted(map(locate, uris), key=str), key=lambda each: each.bucket):
                keys = [each.key for each in group]
                for start in range(0, len(keys), _DELETED_AT_ONCE):
                    with trying():
                        self._delete(bucket, keys[start : start + _DELETED_AT_ONCE])

    def _delete(self, bucket: str, keys: Sequence[str]) -> None:
        try:
            self._delete_with_retries(bucket, keys)
        except StalledTransfer:
            if len(keys) == 1:
                raise
            # A slow store answers only when all are gone: ask for fewer.
            half = len(keys) // 2
            self._delete(bucket, keys[:half])
            self._delete(bucket, keys[half:])

    def _delete_with_retries(self, bucket: str, keys: Sequence[str]) -> None:
        for attempt in range(_DELETE_ATTEMPTS):
            errors = self._delete_once(bucket, keys)
            if not errors:
                return
            worst = next((each for each in errors if each.get("Code") not in _TRANSIENT), None)
            if worst or attempt == _DELETE_ATTEMPTS - 1:
                raise _delete_error(bucket, worst or errors[0], len(errors))
            keys = [each["Key"] for each in errors]
            time.sleep(random.uniform(0.1, 0.3) * 2**attempt)

    def _delete_once(self, bucket: str, keys: Sequence[str]) -> Sequence[dict[str, str]]:
        with translating(f"s3://{bucket}"):
            names = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._client().delete_objects(Bucket=bucket, Delete=names)
        return [each for each in answer.get("Errors", ()) if each.get("Code") != "NoSuchKey"]

    def close(self) -> None:
        self._wire.close()
        self._access.close()


def _delete_error(bucket: str, error: dict[str, Any], count: int) -> TransferError:
    message = f"cannot delete{f' ({count} objects)' if count > 1 else ''}: {error.get('Message', '')}"
    return store_error(str(error.get("Code", "")), message, f"s3://{bucket}/{error.get('Key', '')}")


def _encryption(options: S3Options) -> dict[str, str]:
    if options.sse_type == "none":
        return {}
    key = {"SSEKMSKeyId": options.sse_kms_key_id} if options.sse_kms_key_id else {}
    return {"ServerSideEncryption": options.sse_type, **key}
