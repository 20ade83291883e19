"""``--help`` of every job explains its exit statuses."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys

import pytest

from jobs.command import Parser
from testing.repository import ROOT
from wedlm_batch.console import COMMANDS

JOBS = sorted(
    path.stem
    for path in (ROOT / "jobs").glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8") and path.stem != "__init__"
)


def test_every_command_is_a_job() -> None:
    assert {command.replace("-", "_") for command in COMMANDS} <= set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_the_help_lists_exit_statuses(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"jobs.{name}").main()
    assert ended.value.code == 0
    listed = capsys.readouterr().out.partition("Exit status:")[2]
    statuses = re.findall(r"^  ([\d, ]+\d|\d)  +\S", listed, re.MULTILINE)
    assert statuses[0] == "0"
    assert len(statuses) >= 2, listed


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_has_an_example_that_parses_and_a_sentence_for_every_argument(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = importlib.import_module(f"jobs.{command.replace('-', '_')}")
    found: list[Parser] = []

    def keep(parser: Parser, argv: object = None) -> None:
        found.append(parser)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_args", keep)
        with pytest.raises(KeyboardInterrupt):
            job.main([])
    (parser,) = found
    text = parser.format_help()
    assert not re.search(r"``|:\w+:`", text), "quotes of reStructuredText"
    silent = [action.dest for action in parser._actions if not re.fullmatch(r"[A-Z].*\.", action.help or "")]
    assert not silent, "each argument has a sentence"
    (example,) = re.findall(rf"^Example:\n  wedlm-batch {command}\b(.*)$", text, re.MULTILINE)
    if command != "lm-eval":  # its options are another project's
        parser.parse_args(shlex.split(example))


@pytest.mark.parametrize(
    ("command", "status", "last"),
    [
        (["status", "nowhere"], 2, "error: .*no run was begun there"),
        (["demo", "--model", "./nowhere"], 2, "error: model='./nowhere': "),
    ],
)
def test_a_failed_job_exits_with_its_status_and_ends_its_output_with_the_reason(
    command: list[str], status: int, last: str, tmp_path: object
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"jobs.{command[0]}", *command[1:]], cwd=str(tmp_path), check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    assert re.match(last, done.stdout.splitlines()[-1]), done.stdout
