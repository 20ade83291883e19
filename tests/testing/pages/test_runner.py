"""Pages run as a reader would type them, and failures name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.pages.runner import BlockFailed, differences, run_page


def run(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(parents=True)
    page = tmp_path / "page.md"
    page.write_text(text)
    run_page(page, folder)
    return folder


def test_blocks_share_a_folder_and_python_blocks_their_names(tmp_path: Path) -> None:
    folder = run(
        tmp_path,
        '```text title="a/in.txt"\nhello\n```\n\n```python\nword = open("a/in.txt").read()\n```\n\n'
        "```bash\ncp a/in.txt b.txt\n```\n\n```python\nprint(word.strip(), open('b.txt').read().strip())\n```\n\n"
        "<!-- output -->\n```text\nhello ...o\n```\n",
    )
    assert (folder / "b.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```bash\necho before\nfalse\necho after\n```\n", r"--- page\.md:2\nbefore(.|\n)*page\.md:2: status 1"),
        ("\n```python\nx = 1\n1 / 0\n```\n", r'page\.md", line 4(.|\n)*ZeroDivisionError'),
        ("```python\nimport os; os._exit(3)\n```\n", "status 3"),
        ("```python\nimport os; os._exit(0)\n```\n", "status 0"),
        ("```python\nraise SystemExit(0)\n```\n", "SystemExit"),
        ("```bash\necho 1\n```\n<!-- output -->\n```text\n2\n```\n", r"not printed: \['2'\]; printed was:\n1"),
        ("```bash\necho 1 | false | cat\n```\n", "status 1"),
    ],
)
def test_a_block_that_fails_is_named_with_what_it_printed(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BlockFailed, match=says):
        run(tmp_path, text)


def test_settings_are_built_as_a_job_would_build_them(tmp_path: Path) -> None:
    run(tmp_path / "good", "```yaml\nactors: {min: 0, max: 4}\netl: {since: '2026-11-01'}\n```\n")
    with pytest.raises(BlockFailed, match="Did you mean 'actors'"):
        run(tmp_path / "bad", "```yaml\nactor: 4\n```\n")


def test_output_is_compared_line_by_line_in_order() -> None:
    printed = "one 1 s\ntwo\nthree\n"
    assert differences("one ... s\n...\nthree", printed) == []
    assert differences("three\ntwo", printed) == ["two"]
    assert differences("on", printed) == ["on"]
    assert differences("...wo\nth...ee", printed) == []
    assert differences("one ...x... s", printed) == ["one ...x... s"]
