"""A store that believes nothing: it recomputes each signature by botocore, and each checksum, as AWS does.

Neither rclone nor moto does all of it. Objects and parts are kept in memory; keys are compared decoded.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote

from statelift.backends.checksums import crc64nvme

ACCESS_KEY, SECRET_KEY, REGION = "AKIDSTRICT", "secret/key+", "eu-west-1"


class StrictStore:
    """Serves until the block ends.

    Args:
        signed_payload: refuse what does not sign a SHA-256 over its body.
        checks_sums: compare ``x-amz-checksum-crc64nvme`` with the body, and tell the sum; else ignore it.
        told: a sum to tell instead of the right one.

    Attributes:
        objects: bodies by bucket and key.
        parts: bodies of uploads that are neither completed nor aborted.
        refused: codes of the refusals.
    """

    def __init__(self, *, signed_payload: bool = False, checks_sums: bool = True, told: str | None = None) -> None:
        self.signed_payload = signed_payload
        self.checks_sums = checks_sums
        self.told = told
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.refused: list[str] = []
        store = self

        class Handler(_Handler):
            def setup(self) -> None:
                self.store = store
                super().setup()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fault-strict")
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key": ACCESS_KEY,
            "s3.secret-key": SECRET_KEY,
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Refused(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: StrictStore

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            self._check_signature(body)
            self._check_payload(body)
            answer, headers = self._act(body)
            self._answer(200, answer, headers)
        except _Refused as refused:
            self.store.refused.append(str(refused))
            self._answer(400, f"<Error><Code>{refused}</Code></Error>".encode(), {})

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _check_signature(self, body: bytes) -> None:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        given = self.headers["authorization"] or ""
        names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        request = AWSRequest(self.command, f"http://{self.headers['host']}{self.path}")
        for name in names:
            request.headers[name] = self.headers[name]
        for name, value in self.headers.items():
            if name.lower().startswith("x-amz-") and name.lower() not in names:
                raise _Refused(f"AccessDenied: {name}: {value} is not signed")
        auth = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION)
        request.context["timestamp"] = self.headers["x-amz-date"]
        # The claim is what was signed; whether it is true is looked at next.
        setattr(auth, "payload", lambda request: self.headers["x-amz-content-sha256"])  # noqa: B010
        signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        if f"Signature={signature}" not in given or f"Credential={ACCESS_KEY}/" not in given:
            raise _Refused("SignatureDoesNotMatch")

    def _check_payload(self, body: bytes) -> None:
        claimed = self.headers["x-amz-content-sha256"]
        if claimed == "UNSIGNED-PAYLOAD":
            if self.store.signed_payload:
                raise _Refused("InvalidRequest")
        elif claimed != hashlib.sha256(body).hexdigest():
            raise _Refused("XAmzContentSHA256Mismatch")
        checksum = self.headers["x-amz-checksum-crc64nvme"]
        if checksum and self.command == "PUT" and self.store.checks_sums and checksum != _sum(body):
            raise _Refused("BadDigest")

    def _act(self, body: bytes) -> tuple[bytes, dict[str, str]]:
        path, _, query = self.path.partition("?")
        key, given = unquote(path), {name: value[0] for name, value in parse_qs(query, keep_blank_values=True).items()}
        upload = given.get("uploadId", "")
        if self.command == "POST" and "uploads" in given:
            name = f"upload {len(self.store.parts)}+/="
            self.store.parts[name] = {}
            return f"<R><UploadId>{name}</UploadId></R>".encode(), {}
        if upload and upload not in self.store.parts:
            raise _Refused("NoSuchUpload")
        if self.command == "POST":
            parts = self.store.parts.pop(upload)
            return self._keep(key, b"".join(parts[number] for number in sorted(parts)))
        if self.command == "PUT" and upload:
            self.store.parts[upload][int(given["partNumber"])] = body
            return b"", self._told(body)
        if self.command == "PUT":
            return b"", self._keep(key, body)[1]
        if self.command == "DELETE":
            self.store.parts.pop(upload, None) if upload else self.store.objects.pop(key, None)
            return b"", {}
        return self.store.objects[key], {"etag": '"x"'}

    def _keep(self, key: str, body: bytes) -> tuple[bytes, dict[str, str]]:
        self.store.objects[key] = body
        told = self._told(body)
        extra = f"<ChecksumCRC64NVME>{told.get('x-amz-checksum-crc64nvme', '')}</ChecksumCRC64NVME>"
        return f"<R><ETag>{told['etag']}</ETag>{extra}</R>".encode(), told

    def _told(self, body: bytes) -> dict[str, str]:
        found = {"etag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'}
        if self.store.told or self.store.checks_sums:
            found["x-amz-checksum-crc64nvme"] = self.store.told or _sum(body)
        return found


def _sum(body: bytes) -> str:
    return base64.b64encode(crc64nvme(body).to_bytes(8, "big")).decode()
