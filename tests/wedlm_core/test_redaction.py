"""A short credential is masked as a word of its own, and names that are stored do not depend on credentials."""

from __future__ import annotations

import pytest

from pipeline.config import RunConfig
from pipeline.errors import SinkError
from pipeline.storage.urls import as_os_errors
from wedlm_core import redaction
from wedlm_core.redaction import keep_secret, keep_url_credentials, redact


@pytest.fixture(autouse=True)
def _own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_kept", {})


def test_a_short_credential_is_masked_as_a_word_and_left_in_other_words() -> None:
    keep_secret({"key": "test", "secret": "s3cr3t-value-of-many-letters"})
    assert redact("/tmp/pytest-of-root/latest/tests") == "/tmp/pytest-of-root/latest/tests"
    assert redact("refused for test, 'test' and key-test") == "refused for ***, '***' and key-***"
    assert redact("xs3cr3t-value-of-many-lettersx") == "x***x"


def test_the_stored_name_of_a_model_is_the_same_whatever_credentials_a_process_was_told() -> None:
    before = [RunConfig(input="i", output="o", model=m).model_name for m in ("/models/test/tiny", "s3://u:p@h/m")]
    keep_secret({"key": "test", "secret": "/models/test/tiny"})
    after = [RunConfig(input="i", output="o", model=m).model_name for m in ("/models/test/tiny", "s3://u:p@h/m")]
    assert before == after == ["/models/test/tiny", "s3://***@h/m"]


@pytest.mark.timeout(20)
def test_errors_that_stand_behind_each_other_are_looked_at_once() -> None:
    """A missing object is an answer: the storage raises the cause of its own error again."""
    first, second = FileNotFoundError("a"), SinkError("b")
    first.__context__, second.__cause__ = second, first

    def found_while_handling() -> None:
        try:
            raise first
        except FileNotFoundError:
            with as_os_errors():
                raise FileNotFoundError("c")  # noqa: B904

    with pytest.raises(FileNotFoundError, match="c"):
        found_while_handling()


@pytest.mark.parametrize(
    ("url", "quoted", "secret"),
    [
        ("s3://AKKEY:geheim-1@bucket/x", 'Invalid bucket name "AKKEY:geheim-1@bucket"', "geheim-1"),
        ("s3://AKKEY:ge%2Fheim2@bucket/x", "no bucket AKKEY:ge/heim2@bucket", "ge/heim2"),
        ("https://tokentoken@host/x", "user tokentoken is unknown", "tokentoken"),
        ("https://host/x?sig=unterschrift", "bad signature unterschrift", "unterschrift"),
    ],
)
def test_the_parts_of_a_url_that_libraries_quote_are_masked(
    url: str, quoted: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_kept", {})
    assert secret in redact(quoted), "no pattern knows it"
    keep_url_credentials(url)
    assert secret not in redact(quoted)
    monkeypatch.setattr(redaction, "_kept", {})
    keep_url_credentials(url.partition("://")[0] + "://bucket:8080/key/x")
    assert not redaction._kept
