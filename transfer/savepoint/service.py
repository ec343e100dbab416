"""The HTTP service of a driver: take savepoints, stop with one, ask how far they are.

    POST /jobs/<job>/savepoints       {"type": "native", "target-directory": "s3://state/sp-1"}
    POST /jobs/<job>/stop             the same, and "drain": true|false
    GET  /jobs/<job>/savepoints/<id>  {"status": {"id": "COMPLETED"}, "operation": {"location": ...}}

A POST is answered by 202 and ``{"request-id": ...}``. Every request needs ``Authorization: Bearer
<token>`` (RFC 6750). The service speaks plain HTTP: leave it on loopback, or put TLS in front.
A driver whose loop takes checkpoints serves it by `transfer.savepoint.loop.CheckpointLoop`.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self

from ...backends.errors import UsageError
from .job import Job
from .requests import SavepointRequests, TooManyRequests

_LOG = logging.getLogger("statelift")
_LONGEST_BODY = 64 << 10
_LONGEST_WAIT = 10.0  # seconds for a client to say or take something
_MOST_CONNECTIONS = 32
_PATH = re.compile(r"/jobs/(?P<job>[^/?#]+)/(?P<what>savepoints|stop)(/(?P<id>[0-9a-f]{1,64}))?")
_KEYS = {"savepoints": {"type", "target-directory"}, "stop": {"type", "target-directory", "drain"}}


class SavepointService:
    """Serves the jobs of a driver from a thread of its own.

    with SavepointService(job) as service:
        print(service.url)

    Args:
        host: address to listen on; other machines reach it only if this is not loopback.
        port: 0 takes a free one.
        token: that requests must carry; None makes one, found in `token`.
    """

    def __init__(self, *jobs: Job, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        if token is not None and not re.fullmatch(r"[A-Za-z0-9._~+/-]{16,}=*", token):
            raise UsageError("the token is too short or has other characters than a bearer token's (RFC 6750)")
        self.token = token or secrets.token_urlsafe(32)
        self._requests = SavepointRequests(*jobs)
        self._server = _Server((host, port), self._requests, self.token)
        self._thread = threading.Thread(target=self._server.serve_forever, name="statelift-http", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"SavepointService({self.url})"

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        name = str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def wait_until_told(self, seconds: float) -> bool:
        """Wait until whoever asked has read how each request ended, at most so long. Returns whether they have."""
        return self._requests.wait_until_told(seconds)

    def close(self) -> None:
        """Stop listening, end what is being copied, and wait for the threads. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.end_connections()
        self._server.server_close()
        self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, address: tuple[str, int], requests: SavepointRequests, token: str) -> None:
        self.requests = requests
        self.token = token.encode()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            accepted = len(self._open) < _MOST_CONNECTIONS
            if accepted:
                self._open.add(request)
        if accepted:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        with self._lock:
            for each in self._open:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def handle_error(self, *_: Any) -> None:
        _LOG.debug("a connection to the savepoint service broke", exc_info=True)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "statelift"
    sys_version = ""
    timeout: ClassVar[float] = _LONGEST_WAIT

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def _serve(self, answer: Any) -> None:
        try:
            self._require_token()
            match = _PATH.fullmatch(self.path)
            if match is None:
                raise _Refused(HTTPStatus.NOT_FOUND, "there is no such resource")
            job = self.server.requests.job(match["job"])
            if job is None:
                raise _Refused(HTTPStatus.NOT_FOUND, "there is no such job")
            status, document = answer(job, match["what"], match["id"])
            self._answer(status, document)
            if self.command == "GET":
                self.server.requests.told(match["id"], document)
        except _Refused as refused:
            self._answer(refused.status, {"errors": [str(refused)]}, **refused.headers)
        except OSError:
            raise  # the client is gone, or too slow
        except Exception:
            _LOG.exception("a request to the savepoint service failed")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"errors": ["the request failed: see the driver's log"]})

    def _require_token(self) -> None:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self.server.token)
        if scheme.lower() != "bearer" or not right:
            headers = {"WWW-Authenticate": 'Bearer realm="statelift"'}
            raise _Refused(HTTPStatus.UNAUTHORIZED, "a bearer token is needed", **headers)

    def _get(self, job: Job, what: str, request_id: str | None) -> tuple[HTTPStatus, object]:
        if what != "savepoints" or request_id is None:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only POST is served here", Allow="POST")
        found = self.server.requests.get(job.name, request_id)
        if found is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such request")
        return HTTPStatus.OK, found.document()

    def _post(self, job: Job, what: str, request_id: str | None) -> tuple[HTTPStatus, object]:
        if request_id is not None:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is served here", Allow="GET")
        body = self._body(what)
        kind, target = body.get("type", "native"), body.get("target-directory")
        if job.ending.value != "none":
            raise _Refused(HTTPStatus.CONFLICT, "the job is stopping or has stopped")
        if self.server.requests.closed:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the service is closing")
        try:
            if what == "stop":
                request = self.server.requests.stop(job, target, type=kind, drain=body.get("drain", False))
            else:
                request = self.server.requests.savepoint(job, target, type=kind)
        except UsageError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        except TooManyRequests as error:
            raise _Refused(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from error
        return HTTPStatus.ACCEPTED, {"request-id": request.id}

    def _body(self, what: str) -> dict[str, Any]:
        data = self._bytes()
        try:
            body = json.loads(data) if data else {}
        except (ValueError, RecursionError):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
        unknown = sorted(set(body) - _KEYS[what])
        if unknown:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"unknown: {', '.join(unknown)}")
        for key, value in body.items():
            wanted: type = bool if key == "drain" else str
            if not isinstance(value, wanted) or value == "":
                raise _Refused(HTTPStatus.BAD_REQUEST, f"{key} must be a {'boolean' if wanted is bool else 'text'}")
        return body

    def _bytes(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "a body needs a Content-Length")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise _Refused(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
        if int(length) > _LONGEST_BODY:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {_LONGEST_BODY} bytes")
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body is shorter than its Content-Length")
        return data

    def _answer(self, status: HTTPStatus, document: object, **headers: str) -> None:
        data = json.dumps(document).encode()
        self.close_connection = True
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Connection": "close"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a request line may hold what its sender wants kept."""
