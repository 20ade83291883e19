"""The command that serves: mistakes are one line, and other machines need a token."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from jobs.serve import main


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(list(options)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "needs a token"),
        (["--host", "::"], "needs a token"),
        (["--host", "example.org"], "needs a token"),
        (["--token", "{env: WEDLM_NO_SUCH}"], "WEDLM_NO_SUCH"),
        (["--token", "{env: WEDLM_SHORT}"], "it has 5 characters"),
        (["--model", "./nowhere"], "nowhere"),
        (["--port", "70000"], "cannot be used"),
        (["--set", "engine.max_model_len=9999"], "at most 1024"),
        (["--set", "system_prompt=Answer."], "an OpenAI batch has prompts and parameters in its bodies"),
        (["--runs", "0"], "runs=0: an integer of 1 or more"),
    ],
)
def test_a_mistake_is_a_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WEDLM_SHORT", "short")
    said = refused(
        capsys, "--store", str(tmp_path / "store"), *(["--model", "tiny"] if "--model" not in options else []), *options
    )
    assert message in said
    assert "'short'" not in said


def test_a_port_in_use_and_a_missing_extra_are_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "in use" in refused(capsys, "--store", str(tmp_path), "--model", "tiny", "--port", port)
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    assert "pip install 'wedlm-batch[serve]'" in refused(capsys, "--store", str(tmp_path), "--model", "tiny")


@pytest.mark.parametrize("token", ["a literal secret", "{env: A, file: /b}", "{secret: x}", "[", "3"])
def test_a_token_is_a_reference_and_is_not_shown(
    token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--store", str(tmp_path), "--model", "tiny", "--token", token])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "{env: NAME}" in said
    assert token == "3" or token not in said


def test_the_store_is_named_and_settings_are_those_of_generate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "tiny"])
    assert "--store" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--store", "there", "--model", "tiny", "--max-tokens", "7", "--print-config"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "output: there" in printed
    assert "max_tokens: 7" in printed
