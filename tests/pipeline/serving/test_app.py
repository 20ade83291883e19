"""Requests, by the official client and by hostile ones: errors are OpenAI's, and leave nothing in the store."""

from __future__ import annotations

import http.client
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from pipeline.serving import app
from pipeline.serving.store import Store
from testing.pipeline.endpoint import app_in_thread, client_of

LIMIT = 10_000
TOKEN = "a token of the tests"
FORM = "multipart/form-data; boundary=b"
UNKNOWN = "file-" + "0" * 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("endpoint") / "store"


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with app_in_thread(Store(str(folder), {}), max_file_bytes=LIMIT) as url:
        yield url


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return client_of(url)


def ask(url: str, method: str, path: str, body: bytes | Iterator[bytes] = b"", **headers: str) -> tuple[int, Any]:
    """A request as it is; the status, and the body that was answered."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    given = {name.replace("_", "-"): own for name, own in headers.items()}
    connection.request(method, path, body or None, given, encode_chunked="Transfer-Encoding" in given)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if data[:1] == b"{" else data


def message_of(found: Any) -> str:
    assert set(found) == {"error"}
    assert set(found["error"]) == {"message", "type", "param", "code"}
    return str(found["error"]["message"])


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(
        f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts
    ) + end  # fmt: skip


PURPOSE, FILE = ('name="purpose"', b"batch"), ('name="file"; filename="f.jsonl"', b"{}\n")


def test_files_and_batches_by_the_official_client(client: openai.OpenAI, folder: Path) -> None:
    data = os.urandom(5000)
    file = client.files.create(file=("../../näme.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (5000, "../../näme.jsonl", "batch")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == data
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"priority": "7"}
    )
    assert (batch.status, batch.metadata) == ("validating", {"priority": "7"})
    others = [client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id
              for _ in range(3)]  # fmt: skip
    found = client.batches.list(limit=3)
    assert ([own.id for own in found.data], found.has_more) == (sorted(others, reverse=True), True)
    assert sum(own.id == batch.id for own in found) == 1, "the client asks for the following pages"
    assert file.id in [own.id for own in client.files.list(limit=1, order="asc")]
    with pytest.raises(openai.BadRequestError, match="reads it"):
        client.files.delete(file.id)
    assert client.batches.cancel(batch.id).status == client.batches.cancel(batch.id).status == "cancelling"
    other = client.files.create(file=("b", b"{}"), purpose="batch")
    assert client.files.delete(other.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(other.id)
    assert not list((folder / "files").glob(f"*{other.id}*"))


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (form(PURPOSE, FILE), "text/plain", 400, "Content-Type"),
        (form(PURPOSE, FILE), "multipart/form-data", 400, "boundary"),
        (form(PURPOSE, FILE, end=b""), FORM, 400, "form"),
        (form(FILE), FORM, 400, "form"),
        (form(PURPOSE, FILE, ('name="more"', b"1")), FORM, 400, "form"),
        (form(PURPOSE, FILE, FILE), FORM, 400, "files"),
        (form(*[PURPOSE] * 100, FILE), FORM, 400, "fields"),
        (form(('name="purpose"', b"fine-tune"), FILE), FORM, 400, "purpose='fine-tune'"),
        (form(('name="purpose"', b"b" * 100_000), FILE), FORM, 413, "too long"),
        (form(PURPOSE, ('name="file"; filename="f"', b"x" * (LIMIT + 1))), FORM, 413, "at most"),
        (form(PURPOSE, ('name="file"; filename="f"', b"x" * 300_000)), FORM, 413, "too long"),
        (b"", FORM, 400, ""),
    ],
)
def test_a_bad_form_is_refused_and_leaves_nothing(
    url: str, folder: Path, body: bytes, kind: str, status: int, message: str
) -> None:
    before = sorted(folder.rglob("*"))
    found, said = ask(url, "POST", "/v1/files", body, Content_Type=kind)
    assert found == status, said
    assert message in message_of(said)
    assert sorted(folder.rglob("*")) == before


def test_a_long_file_is_refused_while_the_client_still_sends_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="a file has at most") as error:
        client.files.create(file=("b", bytes(20_000_000)), purpose="batch")
    assert error.value.status_code == 413


def test_a_length_that_is_too_long_is_refused_before_the_body_comes(url: str) -> None:
    assert ask(url, "POST", "/v1/files", Content_Type=FORM, Content_Length="100000000")[0] == 413


def test_a_client_that_falls_silent_is_not_waited_for_and_a_slow_reader_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_SILENT_SECONDS", 0.2)
    with app_in_thread(Store(str(tmp_path), {}), max_file_bytes=30_000_000) as url:
        assert ask(url, "POST", "/v1/files", Content_Type=FORM, Content_Length="1000")[0] == 408
        client = client_of(url)
        file = client.files.create(file=("b", bytes(20_000_000)), purpose="batch")
        with client.files.with_streaming_response.content(file.id) as answer:
            pieces = answer.iter_bytes(1000)
            size = len(next(pieces))
            time.sleep(0.6)
            assert size + sum(map(len, pieces)) == 20_000_000


def test_a_body_without_a_length_is_bounded_too(url: str) -> None:
    begin = form(PURPOSE, ('name="file"; filename="f"', b""), end=b"").removesuffix(b"\r\n")
    pieces = itertools.chain([begin], itertools.repeat(b"x" * 10_000, 50))
    found, said = ask(url, "POST", "/v1/files", pieces, Content_Type=FORM, Transfer_Encoding="chunked")
    assert found == 413, said


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[" * 50_000, "application/json", 400),
        (b"{}", "text/plain", 400),
        (json.dumps({"input_file_id": UNKNOWN, "endpoint": "/v1/completions", "completion_window": "1h"}).encode(),
         "application/json", 404),
        (json.dumps({"input_file_id": "../x", "endpoint": "/v1/completions", "completion_window": "1h"}).encode(),
         "application/json", 404),
        (b" " * 100_000, "application/json", 413),
    ],
)  # fmt: skip
def test_a_bad_batch_is_refused(url: str, body: bytes, kind: str, status: int) -> None:
    found, said = ask(url, "POST", "/v1/batches", body, Content_Type=kind)
    assert found == status, said
    assert message_of(said)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions", 404),
        ("GET", "/", 404),
        ("PUT", "/v1/files", 405),
        ("GET", "/v1/files/..%2f..%2fetc%2fpasswd/content", 404),
        ("GET", "/v1/files/file-0000000000000000000000zz", 404),
        ("DELETE", f"/v1/files/{UNKNOWN}", 404),
        ("POST", "/v1/batches/batch_%00/cancel", 404),
        ("GET", "/v1/batches?limit=1000", 400),
        ("GET", "/v1/batches?after=%2e%2e", 400),
    ],
)
def test_an_unknown_place_is_an_error_of_the_api(url: str, method: str, path: str, status: int) -> None:
    found, said = ask(url, method, path)
    assert found == status
    assert message_of(said)
    if path == "/v1/chat/completions":
        assert "vLLM" in message_of(said)


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example:80"}, {"Host": ""}])
def test_web_pages_reach_no_server_without_a_token(url: str, headers: dict[str, str]) -> None:
    assert ask(url, "GET", "/v1/files", **headers)[0] == 403


def test_a_token_is_asked_for_before_anything_else(tmp_path: Path) -> None:
    with app_in_thread(Store(str(tmp_path), {}), token=TOKEN) as url:
        assert client_of(url, TOKEN).files.list().data == []
        assert ask(url, "GET", "/health") == (200, b"ok")
        with pytest.raises(openai.AuthenticationError, match="no valid token"):
            client_of(url, TOKEN[:-1]).files.list()
        for given in ("", "Bearer ", f"bearer {TOKEN}", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe4"):
            assert ask(url, "GET", "/v1/files", Authorization=given)[0] == 401
        assert ask(url, "POST", "/v1/files", b"x" * 50_000, Content_Type=FORM)[0] == 401
        assert ask(url, "GET", "/nowhere")[0] == 401
        assert TOKEN not in str(ask(url, "GET", "/v1/files"))


def test_a_store_that_fails_is_an_error_without_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path), {})

    def fail(key: str) -> list[str]:
        raise PermissionError(13, "no entry", f"{tmp_path}/files")

    monkeypatch.setattr(store.storage, "keys", fail)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with app_in_thread(store) as url, pytest.raises(openai.InternalServerError) as error:
        client_of(url).files.list()
    assert error.value.status_code == 503
    assert str(tmp_path) not in str(error.value)
    assert "no entry" in capsys.readouterr().err
