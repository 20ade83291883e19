"""The requests of the endpoint, as a Starlette application: OpenAI's Files and Batches API."""

from __future__ import annotations

import hmac
import itertools
import json
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.codec import redact
from pipeline.errors import PipelineError
from pipeline.serving.api_objects import ApiError, Batch, StoredFile, is_loopback, new_batch, new_id, refuse
from pipeline.serving.batch_queue import Runner
from pipeline.serving.store import Store

_BODY_BYTES = 64 * 1024
"""Most bytes of a request in addition to its file."""
_PIECE_BYTES = 2**20
_SILENT_SECONDS = 60.0
"""A client that sends nothing for this long is answered with 408."""
_FIELDS, _NAME_LENGTH = 8, 255
_MOST_FILES, _MOST_BATCHES, _USUAL_BATCHES = 10_000, 100, 20
_PURPOSE, _JSON, _FORM = "batch", "application/json", "multipart/form-data"
_ABOUT = "This server has /v1/files and /v1/batches; for interactive requests use another, such as vLLM's."


class _Api:
    """The handlers of requests. Those that are no coroutines run in threads."""

    def __init__(self, store: Store, wake: Callable[[], None], max_file_bytes: int) -> None:
        self._store, self._wake, self._most = store, wake, max_file_bytes

    def routes(self) -> list[Route]:
        return [
            Route("/health", lambda request: Response("ok")),
            Route("/v1/files", self.upload, methods=["POST"]),
            Route("/v1/files", self.files),
            Route("/v1/files/{id}", self.file),
            Route("/v1/files/{id}", self.delete, methods=["DELETE"]),
            Route("/v1/files/{id}/content", self.content),
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches", self.batches),
            Route("/v1/batches/{id}", self.batch),
            Route("/v1/batches/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def upload(self, request: Request) -> Response:
        _check_type(request, _FORM)
        async with request.form(max_files=1, max_fields=_FIELDS, max_part_size=_BODY_BYTES) as form:
            file, purpose = form.get("file"), form.get("purpose")
            if not isinstance(file, UploadFile) or form.keys() != {"file", "purpose"}:
                raise refuse("form", list(form), "it has the fields file and purpose", "Send these alone.")
            if (file.size or 0) > self._most:
                raise _too_long(self._most)
            if purpose != _PURPOSE:
                raise refuse("purpose", purpose, f"files have the purpose {_PURPOSE!r} here", "Set it.")
            return await anyio.to_thread.run_sync(self._upload, file)

    def _upload(self, file: UploadFile) -> Response:
        name = new_id("file-")
        with self._store.storage.create(self._store.content(name)) as content:
            shutil.copyfileobj(file.file, content, _PIECE_BYTES)
        stored = StoredFile(id=name, bytes=file.size or 0, created_at=int(time.time()), purpose=_PURPOSE,
                            filename=(file.filename or "")[:_NAME_LENGTH])  # fmt: skip
        self._store.put_file(stored)
        return JSONResponse(stored.as_dict())

    def files(self, request: Request) -> Response:
        return _listed(*self._store.files(request.query_params, _MOST_FILES))

    def file(self, request: Request) -> Response:
        return JSONResponse(self._store.file(request.path_params["id"]).as_dict())

    def delete(self, request: Request) -> Response:
        file = self._store.file(request.path_params["id"])
        self._store.delete_file(file)
        return JSONResponse({"id": file.id, "object": "file", "deleted": True})

    def content(self, request: Request) -> Response:
        file = self._store.file(request.path_params["id"])
        stream = self._store.storage.open(self._store.content(file.id))

        def pieces() -> Iterator[bytes]:
            with stream:
                while piece := stream.read(_PIECE_BYTES):
                    yield piece

        headers = {"content-length": str(file.bytes)}
        return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)

    async def create(self, request: Request) -> Response:
        _check_type(request, _JSON)
        return await anyio.to_thread.run_sync(self._create, await request.body())

    def _create(self, body: bytes) -> Response:
        try:
            batch = new_batch(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise refuse("body", body[:50], f"no JSON ({error!s:.100})", "Correct it.") from None
        if self._store.file(batch.input_file_id).purpose != _PURPOSE:
            raise refuse(
                "input_file_id", batch.input_file_id, "a file of results, not of requests", "Name an uploaded file."
            )
        self._store.create(batch)
        self._wake()
        return JSONResponse(batch.as_dict())

    def batches(self, request: Request) -> Response:
        return _listed(*self._store.batches({"limit": str(_USUAL_BATCHES), **request.query_params}, _MOST_BATCHES))

    def batch(self, request: Request) -> Response:
        return JSONResponse(self._store.batch(request.path_params["id"]).as_dict())

    def cancel(self, request: Request) -> Response:
        batch = self._store.change(request.path_params["id"], Batch.cancelled)
        self._wake()
        return JSONResponse(batch.as_dict())


def _check_type(request: Request, kind: str) -> None:
    """Refuse a body of another type: a web page may send some types to any server."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != kind:
        raise refuse("Content-Type", given, f"the body of this request is {kind}", "Send it as such.")


def _listed(found: Iterator[Any], limit: int) -> Response:
    """A page of a list. One more entry shows whether others follow."""
    taken = [own.as_dict() for own in itertools.islice(found, limit + 1)]
    shown = taken[:limit]
    ids = [own["id"] for own in shown] or [None]
    return JSONResponse({"object": "list", "data": shown, "first_id": ids[0], "last_id": ids[-1],
                         "has_more": len(taken) > limit})  # fmt: skip


class _Guard:
    """Answers requests without the token, and those that are too long or stop in the middle.

    Without a token in use it refuses the requests of web pages, which browsers on this machine make for any site.
    """

    def __init__(self, app: ASGIApp, token: str | None, max_file_bytes: int) -> None:
        self._app, self._token, self._most = app, token, max_file_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] != "/health":
            most = _BODY_BYTES + (self._most if scope["path"] == "/v1/files" else 0)
            if (error := self._refused(Headers(scope=scope), most)) is not None:
                app = JSONResponse(error.as_dict(), error.status)
            receive = self._bounded(receive, most)
        await app(scope, receive, send)

    def _refused(self, headers: Headers, most: int) -> ApiError | None:
        if self._token is not None:
            given, wanted = headers.get("authorization", ""), f"Bearer {self._token}"
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                return ApiError(401, "no valid token. Give the server's token as api_key.", code="invalid_api_key")
        elif "origin" in headers or not is_loopback(re.sub(r":\d+$", "", headers.get("host", ""))):
            return ApiError(403, "a server without a token answers local programs only. Start it with --token.")
        return _too_long(self._most) if int(headers.get("content-length", "0")) > most else None

    def _bounded(self, receive: Receive, most: int) -> Receive:
        left, is_whole = most, False

        async def bounded() -> Message:
            nonlocal left, is_whole
            with anyio.fail_after(None if is_whole else _SILENT_SECONDS):
                message = await receive()
            is_whole = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise _too_long(self._most)
            return message

        return bounded


def _too_long(most: int) -> ApiError:
    return ApiError(413, f"the body is too long: a file has at most {most} bytes. Split it.", code="file_too_large")


def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        about = "" if error.status_code == 400 else _ABOUT
        error = ApiError(error.status_code, f"{request.method} {request.url.path!r:.100}: {error.detail}. {about}")
    elif isinstance(error, TimeoutError | ClientDisconnect):
        error = ApiError(408, "the body did not come to its end. Send it again.")
    elif not isinstance(error, ApiError):
        print(redact(f"{request.method} {request.url.path}: {error}"), file=sys.stderr, flush=True)
        error = ApiError(503, "the store does not answer. Try again later; the server's log has the cause.")
    return JSONResponse(error.as_dict(), error.status)


def make_app(store: Store, runner: Runner, *, token: str | None, max_file_bytes: int) -> Starlette:
    """The application over a store; the runner works while it is up. ``token``: of clients; None asks for none."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        runner.start()
        yield
        await anyio.to_thread.run_sync(runner.stop)

    return Starlette(
        routes=_Api(store, runner.wake, max_file_bytes).routes(),
        middleware=[Middleware(_Guard, token=token, max_file_bytes=max_file_bytes)],
        exception_handlers=dict.fromkeys((PipelineError, OSError, HTTPException, ClientDisconnect), _answer_error),
        lifespan=lifespan,
    )
