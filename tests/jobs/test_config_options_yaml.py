"""A key that stands twice is refused wherever settings are read, as YAML itself would silently take the last one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from jobs import generate
from jobs.config_options import read_yaml

TWICE = {
    "a field": "actors: 1\nactors: 4\n",
    "a pool": "pools:\n  a: {actors: 1}\n  a: {actors: 2}\n",
    "a field of a field": "sampling: {max_tokens: 3, max_tokens: 4}\n",
    "in a list": "etl: [{a: 1, a: 2}]\n",
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_stands_twice_in_a_file_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(f"input: in\noutput: out\n{TWICE[name]}")
    assert generate.main(["--config", str(tmp_path / "job.yaml")]) == 2
    said = capsys.readouterr().err
    assert "stands twice" in said
    assert "line " in said


@pytest.mark.parametrize(
    "option", [["--set", "pools={a: {}, a: {}}"], ["--storage-options", "{key: {env: A}, key: {env: B}}"]]
)
def test_and_on_the_command_line(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = generate.main(["--input", "in", "--output", "out", *option])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert "stands twice" in capsys.readouterr().err


def test_what_is_merged_may_be_overridden_and_all_else_is_read_as_ever() -> None:
    assert read_yaml("a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\nc: [1, 2.5, yes, 2026-11-01]")["b"] == {"k": 3, "l": 2}
    assert read_yaml("") is None


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "a: &a\n  b: [1, {c: *a}]", "&top\nengine: *top"])
def test_a_value_inside_itself_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="a value that contains it"):
        read_yaml(text)


def test_a_value_that_stands_in_many_places_is_read_in_linear_time() -> None:
    lines = ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    assert read_yaml("\n".join(lines))["a1"] == [[1]] * 9
