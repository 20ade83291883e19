"""Command line and YAML: precedence, refusals, exit codes; and the jobs on a real model."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jobs import cli, status
from jobs.command import Parser
from jobs.config_options import OPTIONS, add_config_options
from jobs.generate import main
from pipeline import ActorRange, ConfigError, PoolConfig, RunConfig


def parsed(*argv: str) -> RunConfig:
    import argparse

    parser = argparse.ArgumentParser()
    add_config_options(parser)
    return cli.collect(parser.parse_args(argv))


def test_options_and_settings_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "input: a.parquet\noutput: out\nactors: 2\n"
        "sampling:\n  max_tokens: 10\n  stop: [x, y]\nengine: {page_size: 16}\n"
    )
    config = parsed("--config", str(file), "--actors", "3", "--set", "sampling.max_tokens=48", "--set", "chat=true")
    assert (config.input, config.output, config.actors, config.chat) == ("a.parquet", "out", 3, True)
    assert (config.sampling.max_tokens, config.sampling.stop, config.engine.page_size) == (48, ("x", "y"), 16)


@pytest.mark.parametrize(
    ("words", "actors"),
    [(["--actors", "4"], 4), (["--actors", "0-64"], ActorRange(min=0, max=64)),
     (["--set", "actors.max=64"], ActorRange(min=1, max=64)),
     (["--set", "pools.fast.actors.max=3", "--set", "pools.fast.gpus_per_actor=0.5"], 1)],
)  # fmt: skip
def test_actors_are_a_number_or_a_range(words: list[str], actors: object) -> None:
    config = parsed("--input", "x", "--output", "y", *words)
    assert config.actors == actors
    if "pools.fast.actors.max=3" in words:
        assert config.pools["fast"] == PoolConfig(actors=ActorRange(max=3), gpus_per_actor=0.5)


@pytest.mark.parametrize("text", ["many", "1-", "-", "1-b", "1.5"])
def test_other_numbers_of_actors_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    add_config_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--actors", text])
    assert "must be a number or a range" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("actors=3", {"actors": 3}),
        ("sampling.temperature=0.5", {"sampling": {"temperature": 0.5}}),
        ("sampling.stop=[a, b]", {"sampling": {"stop": ["a", "b"]}}),
        ("sampling.entropy_threshold=null", {"sampling": {"entropy_threshold": None}}),
        ("system_prompt=a=b", {"system_prompt": "a=b"}),
        ("model=", {"model": None}),
    ],
)
def test_a_setting_is_a_dotted_name_and_a_yaml_value(text: str, expected: dict[str, Any]) -> None:
    assert cli.parse_setting(text) == expected


def test_each_decoding_option_is_a_short_form_of_its_field(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "integer"}')
    short = ["--strategy", "autoregressive", "--seed", "7", "--n", "2", "--temperature", "0.5", "--top-p", "0.9"]
    long = ["strategy=autoregressive", "n=2", "temperature=0.5", "top_p=0.9"]
    ends = ["--input", "i", "--output", "o"]
    settings = [word for text in long for word in ("--set", f"sampling.{text}")]
    assert parsed(*ends, *short) == parsed(*ends, *settings, "--set", "seed=7")
    for argv, structure in (
        (["--choices", "a", "b, c"], {"choice": ["a", "b, c"]}),
        (["--schema", str(tmp_path / "s.json")], {"json": '{"type":"integer"}'}),
        (["--schema", '{"type": "integer"}'], {"json": '{"type":"integer"}'}),
    ):
        found = parsed(*ends, *argv).sampling.structure
        assert found is not None
        assert found.as_dict() == structure
    with pytest.raises(ConfigError, match="exactly one of"):
        parsed(*ends, "--choices", "a", "--schema", "{}")
    with pytest.raises(ConfigError, match="nowhere"):
        parsed(*ends, "--schema", "nowhere.json")


def test_an_option_and_a_setting_of_one_field_agree_or_are_refused_with_both_names() -> None:
    ends = ["--input", "i", "--output", "o"]
    config = parsed(*ends, "--temperature", "1", "--set", "sampling.temperature=1", "--set", "sampling.top_k=3")
    assert (config.sampling.temperature, config.sampling.top_k) == (1.0, 3)
    for argv, names in (
        (["--temperature", "0", "--set", "sampling.temperature=0.5"], "--temperature and --set sampling.temperature"),
        (["--temperature", "0", "--set", "sampling={temperature: 1}"], "--temperature and --set sampling.temperature"),
        (["--temperature", "0", "--set", "sampling=null"], "--temperature and --set sampling"),
        (["--actors", "2-8", "--set", "actors.max=64"], "--actors and --set actors.max"),
        (["--actors", "2", "--set", "actors.max=64"], "--actors and --set actors.max"),
        (["--choices", "a", "b", "--set", "sampling.structured_outputs.choice=[b]"], "--choices and --set sampling.s"),
    ):
        with pytest.raises(ConfigError, match=names):
            parsed(*ends, *argv)


def test_every_option_names_a_field() -> None:
    known = {field.name for field in fields(RunConfig)}
    listed = [option for group in OPTIONS.values() for option in group]
    assert {option.path.partition(".")[0] for option in listed} <= known
    assert len({option.path for option in listed}) == len(listed)


def test_a_printed_configuration_is_given_again_and_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(
        "input: s3://bucket/in\nactors: 3\nengine: {max_num_seqs: 7}\nsampling: {stop: [a, b], strategy: reference}\n"
        "storage_options: {key: {env: MY_KEY}, secret: {file: /run/secrets/s}, endpoint_url: 'http://h:1'}\n"
        "sampling_columns: {max_tokens: m}\ncolumns: [a]\ngpus_per_actor: 0.5\nsystem_prompt: 'é: \"x\"'\n"
    )
    given = ["--config", str(tmp_path / "job.yaml"), "--output", "out", "--set", "sampling.logit_bias={5: -1.5}"]
    with pytest.raises(SystemExit) as ended:
        main([*given, "--print-config"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    (tmp_path / "printed.yaml").write_text(printed)
    again = parsed("--config", str(tmp_path / "printed.yaml"))
    assert again == parsed(*given)
    assert (again.storage_options["key"], again.engine.max_num_seqs) == ({"env": "MY_KEY"}, 7)
    with pytest.raises(SystemExit):
        main(["--config", str(tmp_path / "printed.yaml"), "--print-config"])
    assert capsys.readouterr().out == printed


def test_a_printed_schema_is_the_schema_whatever_its_fields_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string"}, "token": {"const": "b"}, "on": {}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "job.yaml").write_text(
        f"input: in\noutput: out\nsampling: {{structured_outputs: {{json: {{file: '{tmp_path}/schema.json'}}}}}}\n"
        f"parse: {{key: {{json: {{file: '{tmp_path}/schema.json'}}}}, n: {{pattern: a}}}}\n"
    )
    with pytest.raises(SystemExit):
        main(["--config", str(tmp_path / "job.yaml"), "--print-config"])
    printed = capsys.readouterr().out
    (tmp_path / "schema.json").unlink()
    (tmp_path / "printed.yaml").write_text(printed)
    again = parsed("--config", str(tmp_path / "printed.yaml"))
    assert again.sampling.structure is not None
    assert again.sampling.structure.schema == json.loads(again.parse["key"].json) == schema


def test_a_printed_configuration_shows_no_secret_and_is_refused_until_the_mask_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--input", "s3://b/i", "--output", "o", "--storage-options", "{secret: pr1nt3d}", "--print-config"])
    printed = capsys.readouterr().out
    assert "pr1nt3d" not in printed
    assert printed.startswith("# storage_options.secret is masked: write {env: NAME}")
    (tmp_path / "printed.yaml").write_text(printed)
    with pytest.raises(ConfigError, match=r"storage_options\.secret: \*\*\* stands for a secret"):
        parsed("--config", str(tmp_path / "printed.yaml"))


def test_a_secret_on_the_command_line_is_warned_of_and_a_reference_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--input", "i", "--output", "o"]
    parsed(*given, "--storage-options", "{secret: ab12-cd, anon: true}", "--set", "dataset_options.token=ef34-gh")
    said = capsys.readouterr().err
    assert "warning: storage_options.secret: on the command line" in said
    assert "warning: dataset_options.token: on the command line" in said
    assert "ab12" not in said
    assert status.main([str(tmp_path), "--storage-options", "{secret: ab12-cd}"]) == 2
    assert "warning: storage_options.secret: on the command line" in capsys.readouterr().err
    parsed(*given, "--storage-options", "{secret: {env: S}}", "--set", "dataset_options.token={file: /t}")
    assert capsys.readouterr().err == ""
