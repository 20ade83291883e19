"""Secrets by reference: found where they are used, shown nowhere, refused with the place and the remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from wedlm_core import LLM, ConfigError
from wedlm_core.redaction import MASK, masked, redact
from wedlm_core.references import check_references, literal_secrets, resolved

SECRET = "reference-Zq81-value"


def test_references_are_resolved_at_any_depth_and_the_given_mapping_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", f"{SECRET}-1")
    (tmp_path / "s").write_text(f"{SECRET}-2\n")
    given = {
        "key": {"env": "MY_KEY"}, "anon": False, "client_kwargs": {"headers": [{"x": {"file": str(tmp_path / "s")}}]},
    }  # fmt: skip
    assert resolved(given) == {
        "key": f"{SECRET}-1", "anon": False, "client_kwargs": {"headers": [{"x": f"{SECRET}-2"}]},
    }  # fmt: skip
    assert given["key"] == {"env": "MY_KEY"}
    assert redact(f"refused: {SECRET}-2.") == f"refused: {MASK}.", "known by value, whatever its name is"
    assert masked(given) == given, "a reference may be shown"
    text = repr({"secret": {"env": "MY_KEY"}, "token": {"file": "/s"}, "password": {"other": 1}, "key": "x"})
    assert redact(text) == text.replace("{'other'", f"{MASK}'other'").replace("'x'", MASK)


def test_a_secret_that_is_not_there_is_an_error_that_names_place_process_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"options\.key refers to \{env: MY_KEY\}, .*not set.* in process \d+"):
        resolved({"key": {"env": "MY_KEY"}})
    with pytest.raises(ConfigError, match=r"a\.secret refers to \{file: /nowhere/s\}, .* process .*No such file"):
        resolved({"a": {"secret": {"file": "/nowhere/s"}}})
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe" + SECRET.encode())
    (tmp_path / "long").write_bytes(b"x" * 70_000)
    for name, why in (("empty", "empty"), ("binary", "no text"), ("long", "longer than")):
        with pytest.raises(ConfigError, match=why) as caught:
            resolved({"secret": {"file": str(tmp_path / name)}})
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"key": {"env": "A B"}}, r"o\.key: env is the name"),
        ({"a": {"key": {"file": "relative"}}}, r"o\.a\.key: file is an absolute path"),
        ({"key": MASK}, r"o\.key: \*\*\* stands for a secret"),
    ],
)
def test_references_that_can_never_be_resolved_are_refused_before(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        check_references(options, "o")


def test_literal_secrets_are_told_by_their_names() -> None:
    options = {
        "key": "a", "secret": {"env": "S"}, "anon": True, "endpoint_url": "http://h",
        "client_kwargs": {"aws_session_token": "t", "region": "r", "password": ""}, "headers": [{"Authorization": "x"}],
    }  # fmt: skip
    assert literal_secrets(options, "o") == ["o.key", "o.client_kwargs.aws_session_token", "o.headers[0].Authorization"]
    assert literal_secrets(None, "o") == []
    assert literal_secrets({"endpoint_url": "http://me:pw@host:1", "proxy": "http://host:1"}, "o") == ["o.endpoint_url"]


def test_what_a_store_s_client_finds_by_itself_is_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "platform-session-Zq82")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "short-Zq83")
    resolved({})
    assert redact("refused: platform-session-Zq82, short-Zq83") == f"refused: {MASK}, short-Zq83"


def test_a_model_takes_references_too() -> None:
    with pytest.raises(ConfigError, match=r"storage_options\.token refers to \{env: NO_SUCH_TOKEN\}"):
        LLM("memory://model", storage_options={"token": {"env": "NO_SUCH_TOKEN"}})


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_the_line_end_of_a_variable_is_no_part_of_the_secret(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", f"given-9{end}")
    assert resolved({"key": {"env": "MY_SECRET"}}) == {"key": "given-9"}


@pytest.mark.parametrize("given", [{"env": 5}, {"env": None}, {"file": ["a"]}, {"env": "A", "file": "/b"}, {"env": {}}])
def test_what_is_nearly_a_reference_is_refused_at_any_depth(given: Any) -> None:
    for options in ({"key": given}, {"client_kwargs": {"headers": [given]}}):
        with pytest.raises(ConfigError, match=r"no reference to a secret\. Write"):
            check_references(options, "o")


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "gone", "endless", "too long"])
def test_a_file_that_holds_no_secret_is_an_error_at_once(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "secret"
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a folder":
        place.mkdir()
    elif kind == "endless":
        place = Path("/dev/zero")
    elif kind == "too long":
        place.write_text("x" * 100_000)
    with pytest.raises(ConfigError, match="which cannot be read in process"):
        resolved({"key": {"file": str(place)}})
