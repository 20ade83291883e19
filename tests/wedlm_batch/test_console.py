"""The command ``wedlm-batch``: its help and version, and that each sub-command is a job."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest

from jobs.config_options import add_config_options
from testing.users_folder import make_folder, run_python
from wedlm_batch import __version__
from wedlm_batch.console import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_sub_command_has_help_under_its_name_and_the_version(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = importlib.import_module(f"jobs.{command.replace('-', '_')}")
    assert list(inspect.signature(job.main).parameters) == ["argv", "prog"]
    for option, beginning in (
        ("--help", f"usage: wedlm-batch {command} "),
        ("--version", f"wedlm-batch {__version__}"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([command, option])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(beginning)


def test_help_lists_all_sub_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--help", "-h", "help"):
        assert main([argument]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines if line.startswith("  ") and "--" not in line] == list(COMMANDS)
    assert main([]) == 2
    assert "generate" in capsys.readouterr().err


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wedlm-batch {__version__}\n"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("generat", "Did you mean 'generate'?"),
        ("run", "See `wedlm-batch --help`"),
        ("lm_eval", "Did you mean 'lm-eval'?"),
        ("--input=s3://key:hunter2@bucket", "wedlm-batch generate --input"),
    ],
)
def test_an_unknown_sub_command_is_one_line_and_exit_status_2(
    argument: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert "hunter2" not in line


@pytest.mark.parametrize("command", ["generate", "validate", "preview", "estimate", "calibrate"])
def test_options_of_a_configuration_are_the_same_everywhere(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    import argparse

    parser = argparse.ArgumentParser()
    add_config_options(parser)
    options = [option for action in parser._actions for option in action.option_strings]
    assert {"--max-tokens", "--temperature", "--messages-column", "--prompt-column"} <= set(options)
    assert not [option for option in options if option not in shown]


def test_validate_preview_and_estimate_do_what_their_options_of_generate_do(
    qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"talk": [{"role": "user", "content": f"Count to {i}."}]} for i in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ["--input", str(tmp_path / "in.jsonl"), "--model", str(qwen3_folder), "--messages-column", "talk",
              "--max-tokens", "3", "--temperature", "0.5"]  # fmt: skip
    assert main(["preview", *common, "--rows", "2"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 2
    assert all(row["completion_tokens"] <= 3 for row in shown)
    assert main(["generate", *common, "--output", str(tmp_path / "out"), "--preview", "2"]) == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in again] == [row["text"] for row in shown]

    assert main(["validate", *common, "--output", str(tmp_path / "out")]) == 0
    assert "rows: 3" in capsys.readouterr().out
    assert main(["estimate", *common, "--rows", "2"]) == 0
    assert "rows" in capsys.readouterr().out.lower()
    assert not (tmp_path / "out" / "__wedlm").exists()


def test_a_fault_of_the_caller_has_the_jobs_exit_status(tmp_path: Path) -> None:
    project = make_folder(tmp_path / "project", "pipeline", "jobs/__init__")
    done = run_python(project, "-m", "wedlm_batch", "status", "out/none")
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
