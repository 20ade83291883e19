"""Credentials in every way of giving them, right and wrong: none is shown, and none is left in an output."""

from __future__ import annotations

import functools
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import s3fs

import pipeline
from jobs import calibrate, generate, status, verify
from jobs.cli import parse_setting
from jobs.config_options import parse_options
from pipeline.commands import run as run_module
from pipeline.config import RunConfig
from pipeline.storage import retry
from testing.pipeline.fakes import RealExecutor
from wedlm_core import LLM
from wedlm_core.redaction import MASK, keep_secret, masked, redact

SECRET = "hunter2-Zx/81+q"
QUOTED = "hunter2-Zx%2F81"
NOWHERE = "127.0.0.1:9"  # nothing listens there


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.001, raising=False)


def shows_secret(text: str) -> bool:
    return "hunter2" in text


def outcome(call: Callable[[], Any], capfd: pytest.CaptureFixture[str]) -> str:
    """Everything that is shown: output, traceback with all causes, the exception's own forms."""
    text = ""
    try:
        call()
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(error)) + str(error) + repr(error) + repr(getattr(error, "args", ""))
    captured = capfd.readouterr()
    return text + captured.out + captured.err


ARGUMENTS: dict[str, list[str]] = {
    "malformed options": ["--storage-options", f"{{key: a, secret: {SECRET}"],
    "options with an unknown alias": ["--storage-options", f"{{secret: *{QUOTED}}}"],
    "options with a tag": ["--storage-options", f"{{secret: !{QUOTED} x}}"],
    "options that are JSON cut short": ["--storage-options", json.dumps({"key": "a", "secret": SECRET})[:-2]],
    "options that are a text": ["--storage-options", SECRET],
    "options that are a list": ["--storage-options", f"[{SECRET}]"],
    "options of deep nesting": ["--storage-options", "[" * 5000 + SECRET],
    "options under another name": ["--storageoptions", f"{{secret: {SECRET}}}"],
    "options under another name with =": [f"--storageoptions={{secret: {SECRET}}}"],
    "options under an ambiguous name": [f"--s={{secret: {SECRET}}}"],
    "options without their name": [f"{{secret: {SECRET}}}"],
    "set without =": ["--set", f"storage_options.secret:{SECRET}"],
    "set of a mapping": ["--set", f'{{"storage_options": {{"secret": "{SECRET}"}}}}'],
    "set of malformed options": ["--set", f"storage_options={{secret: {SECRET}"],
    "set of options that are a text": ["--set", f"storage_options={SECRET}"],
    "set of options that are a list": ["--set", f"output_storage_options=[{SECRET}]"],
    "set of an unknown field": ["--set", f"storage_optoins.secret={SECRET}"],
    "set of an unknown field of a known one": ["--set", f"sampling.secret={SECRET}"],
    "set of dataset options that are a text": ["--set", f"dataset_options={SECRET}"],
    "input by user and password": ["--input", f"http://me:{QUOTED}@{NOWHERE}/x.jsonl"],
    "input by a password with signs": ["--input", f"http://me:{SECRET}@{NOWHERE}/x.jsonl"],
    "input by a signature": ["--input", f"http://{NOWHERE}/x.jsonl?X-Amz-Signature={QUOTED}&a=b.jsonl"],
    "input of an unknown scheme": ["--input", f"nosuch://me:{QUOTED}@host/x.jsonl"],
    "input without files": ["--input", f"memory://me:{QUOTED}@host/none.jsonl"],
    "output by user and password": ["--output", f"ftp://me:{QUOTED}@{NOWHERE}/out"],
    "output by a token": ["--output", f"http://{NOWHERE}/out?sig={QUOTED}"],
    "output of an unknown scheme": ["--output", f"nosuch://me:{QUOTED}@host/out"],
    "model by user and password": ["--model", f"http://me:{QUOTED}@{NOWHERE}/model"],
    "model by a token of a name": ["--model", f"https://{QUOTED}@{NOWHERE}/model?access_token={QUOTED}"],
    "model of an unknown scheme": ["--model", f"nosuch://me:{'hunter2' * 40}@host/model"],
    "options that no file system knows": [
        "--storage-options", f"{{secret: {SECRET}, x: 1}}", "--input", f"s3://bucket/x.jsonl?token={QUOTED}"],
    "options of a store that refuses the connection": [
        "--input", "s3://bucket/x.jsonl", "--storage-options",
        f"{{key: {SECRET}, secret: {SECRET}, endpoint_url: 'http://me:{QUOTED}@{NOWHERE}',"
        " config_kwargs: {retries: {max_attempts: 0}}}"],
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_command_line_shows_no_credentials(
    name: str, qwen3_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # five times with pauses, and we repeat each
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    given = {"--input": str(tmp_path / "in.jsonl"), "--output": str(tmp_path / "out"), "--model": str(qwen3_folder)}
    own = ARGUMENTS[name]
    if "options" not in name or "--input" in own:
        own = [part for option, value in given.items() if option not in own for part in (option, value)] + own
    shown = outcome(lambda: generate.main(["--limit", "1", *own]), capfd)
    assert shown, "it fails, and says why"
    assert not shows_secret(shown), shown
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize("main", [status.main, verify.main], ids=["status", "verify"])
@pytest.mark.parametrize(
    "arguments",
    [[f"ftp://me:{QUOTED}@{NOWHERE}/out"], ["out", "--storage-options", f"{{secret: {SECRET}"],
     ["out", "--storge-options", f"{{secret: {SECRET}}}"], [f"nosuch://me:{QUOTED}@h/out"]],
)  # fmt: skip
def test_status_and_verify_show_no_credentials(
    main: Callable[..., int], arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    shown = outcome(lambda: main(arguments), capfd)
    assert shown
    assert not shows_secret(shown), shown


def test_calibrate_shows_no_credentials(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--floor", "0.9", "--input", "x", "--storage-options", f"{{secret: {SECRET}"]
    assert not shows_secret(outcome(lambda: calibrate.main(arguments), capfd))


CALLS: dict[str, Callable[[], Any]] = {
    "options of a wrong type": lambda: RunConfig(input="a", output="b", storage_options=SECRET),  # type: ignore[arg-type]
    "options that are none": lambda: RunConfig(input="a", output="b", storage_options=None),  # type: ignore[arg-type]
    "options in pairs": lambda: RunConfig.from_mapping(
        {"input": "a", "output": "b", "input_storage_options": [("secret", SECRET)]}
    ),
    "an unknown field": lambda: RunConfig.from_mapping({"input": "a", "output": "b", "secrets": SECRET}),
    "reading an output": lambda: pipeline.read(f"ftp://me:{QUOTED}@{NOWHERE}/out", format="arrow"),
    "status of an output": lambda: pipeline.status(f"nosuch://me:{QUOTED}@host/out"),
    "a model": lambda: LLM(f"http://me:{QUOTED}@{NOWHERE}/model"),
    "a model with options": lambda: LLM("nosuch://host/model", storage_options={"secret": SECRET}),
    "a model's options of a wrong type": lambda: LLM("s3://host/model", storage_options=SECRET),  # type: ignore[arg-type]
    "options of a command": lambda: parse_options(f"{{secret: {SECRET}"),
    "a setting of a command": lambda: parse_setting(f"storage_options={{secret: {SECRET}"),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_of_the_library_show_no_credentials_nor_do_their_causes(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match=r".+") as caught:
        CALLS[name]()
    chain: list[BaseException] = [caught.value]
    while (
        cause := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__)
    ) is not None:
        chain.append(cause)
    for error in chain:
        assert not shows_secret(str(error) + repr(error)), repr(error)
    captured = capfd.readouterr()
    assert not shows_secret(captured.out + captured.err)


def test_a_configuration_shows_its_fields_but_no_credentials() -> None:
    config = RunConfig(
        input=f"s3://me:{QUOTED}@bucket/in", output=f"ftp://me:{QUOTED}@host/out", model=f"http://{QUOTED}@host/m",
        storage_options={"key": SECRET, "client_kwargs": {"endpoint_url": f"http://a:{QUOTED}@h", "region": "eu"}},
        dataset_options={"split": "train", "token": SECRET}, seed=7,
    )  # fmt: skip
    for text in (repr(config), str(config), f"{config}", config.model_name):
        assert not shows_secret(text), text
    for part in ("seed=7", "'split': 'train'", f"ftp://{MASK}@host/out", "'region': 'eu'"):
        assert part in repr(config)
    assert config.storage_options["key"] == SECRET, "the given value is used"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """An HTTP server of a folder on loopback: host and port."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_run_with_credentials_leaves_none_in_its_output_and_shows_none(
    qwen3_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: RealExecutor())
    web = tmp_path / "web"
    (web / "model").mkdir(parents=True)
    for path in qwen3_folder.iterdir():
        (web / "model" / path.name).write_bytes(path.read_bytes())
    (web / "in.jsonl").write_text('{"prompt": "a", "k": 1}\n{"prompt": null, "k": 2}\n')
    monkeypatch.setenv("WEDLM_CACHE", str(tmp_path / "cache"))
    output = tmp_path / "out"
    with serving(web) as host, caplog.at_level(logging.DEBUG, logger="pipeline"):
        given = {
            "output": output, "model": f"http://me:{QUOTED}@{host}/model",
            "storage_options": {"headers": {"X-Auth-Token": SECRET}}, "sampling": {"max_tokens": 4},
        }  # fmt: skip
        result = pipeline.run(f"http://me:{QUOTED}@{host}/in.jsonl", **given)
        assert (result.summary.total.rows, result.summary.total.failed_rows) == (2, 1)
        print(result.summary.describe(), result, status.main([str(output)]))
        with pytest.raises(pipeline.FingerprintError) as caught:
            pipeline.run(f"http://me:{QUOTED}@{host}/in.jsonl", **{**given, "seed": 3})
    assert not shows_secret("".join(traceback.format_exception(caught.value)))
    captured = capfd.readouterr()
    assert not shows_secret(captured.out + captured.err + caplog.text)
    files = [path for path in output.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        assert b"hunter2" not in path.read_bytes(), path
    assert set(pipeline.read(output, format="arrow")["model"].to_pylist()) == {f"http://{MASK}@{host}/model"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://me:pw@bucket/x", "s3://***@bucket/x"),
        ("simplecache::s3://me:p@w/d@bucket/x y", "simplecache::s3://***@bucket/x y"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://h/x?X-Amz-Signature=abc&X-Amz-Credential=AK/2&size=3&sig=zz%3D", "https://h/x?X-Amz-Signature=***"
         "&X-Amz-Credential=***&size=3&sig=***"),
        ("AccountName=n;AccountKey=abc==;x", "AccountName=n;AccountKey=***;x"),
        ("{'secret': 'a', 'key': \"k k\", region: x}", "{'secret': ***, 'key': ***, region: x}"),
        ("open(url, token='abc', n=3)", "open(url, token=***, n=3)"),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer ***"),
        ("Credential AKIAABCDEFGHIJKLMNOP is not known", "Credential *** is not known"),
    ],
)  # fmt: skip
def test_credentials_are_known_by_their_forms(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(redact(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["http://localhost:5000/b/a@v1: no such file", "max_tokens=48: lower it", "prompt_tokens=5", "tokens: 12 prompt",
     "id_column='key': the input has no such column", "/data/passwords.csv: cannot be read", "column 'key': null",
     "s3://bucket/key=5/secret-data.parquet: it was changed", "stop_token_ids=(1, 2): too many", "mask_token_id=5",
     "a@b.example, c: d"],
)  # fmt: skip
def test_messages_without_credentials_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_values_that_were_given_as_credentials_are_masked_wherever_they_turn_up() -> None:
    keep_secret({"key": "Kz81-given", "client_kwargs": {"aws_secret_access_key": "Sz82-given", "region": "eu-west-1"}})
    assert redact("no such user Kz81-given in eu-west-1 (Sz82-given)") == "no such user *** in eu-west-1 (***)"
    assert masked({"token": "x", "a": [{"password": "y"}], "n": 1}) == {
        "token": MASK,
        "a": [{"password": MASK}],
        "n": 1,
    }
