"""Notices that a worker has to go: real signals, a real file, a real server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.errors import EngineDiedError
from pipeline.worker.notice import SIGTERM, SPOT_NOTICE, Notice, spot_notice


class Metadata(BaseHTTPRequestHandler):
    """Answers with the server's ``status`` and ``body``."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.body.encode())  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def metadata_service() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_an_address_gives_notice_by_a_body_with_status_200_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens: it must not be asked
    with metadata_service() as server:
        url = f"http://127.0.0.1:{server.server_port}/spot/instance-action"
        for status, body, said in [
            (404, "not found", None), (500, "broken", None), (200, "", None), (200, "FALSE", None), (204, "", None),
            (200, '{"action": "terminate"}', '{"action": "terminate"}'), (200, "TRUE\n", "TRUE"),
        ]:  # fmt: skip
            server.status, server.body = status, body  # type: ignore[attr-defined]
            assert spot_notice(url) == said, (status, body)
    assert spot_notice(url) is None, "nobody listens any more"


def test_a_file_gives_notice_by_being_there(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    notice = Notice(str(file), poll_seconds=0.01)
    notice.listen()
    assert notice.wait(0.05) is None
    (tmp_path / "draft").write_text("rebalance\n")
    (tmp_path / "draft").rename(file)
    assert notice.wait(10) == "notice of its machine: rebalance"
    assert notice.wait(10) == "notice of its machine: rebalance", "it stays"
    file.write_text("")
    assert spot_notice(str(file)) == f"{file} is there"
    assert spot_notice(str(tmp_path)) is None, "a folder is no notice"


def test_sigterm_is_a_notice_and_does_not_end_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    notice = Notice()
    try:
        notice.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        assert notice.wait(10) == SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_environment_names_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPOT_NOTICE, str(tmp_path / "notice"))
    (tmp_path / "notice").write_text("soon")
    before = signal.getsignal(signal.SIGTERM)
    try:
        notice = Notice.of_environment()
        notice.listen()
        assert notice.wait(10) == "notice of its machine: soon"
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("place", "fault"), [("/", "a folder"), ("notice", "a relative path"), ("ftp://h/x", "no address of http")]
)
def test_a_place_where_no_notice_can_be_is_refused_before_a_model_is_loaded(
    place: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPOT_NOTICE, place)
    with pytest.raises(EngineDiedError, match=f"{SPOT_NOTICE}='{place}': {fault}.*Name a file"):
        Notice.of_environment()
