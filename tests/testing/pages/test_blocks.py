"""Code blocks of a page: the use of each, and refused marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.pages.blocks import Block, blocks_of, console_commands, faults

PAGE = """# Title

<!-- not run: needs a GPU here -->
```bash
nvidia-smi
```

```yaml title="job.yaml"
input: a
```

```yaml
actors: 4
```

```python
print(1)
```

<!-- output -->
```text
1
```

<!-- run on: other.md -->
```bash
wedlm-batch status out --storage-options '{}'
```
"""


def blocks(tmp_path: Path, text: str) -> list[Block]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return blocks_of(page)


def test_each_block_has_its_use_and_its_line(tmp_path: Path) -> None:
    found = blocks(tmp_path, PAGE)
    assert [block.use for block in found] == ["shown", "file", "settings", "run", "output", "shown"]
    assert [PAGE.splitlines()[block.line - 1] for block in found] == [block.code.splitlines()[0] for block in found]
    assert found[1].title == "job.yaml"
    assert not faults(found, {"other.md": {found[-1].code}})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```\nls\n```\n", "no language"),
        ("```json\n{}\n```\n", "neither run nor a file"),
        ("```text\nwedlm-batch status out\n```\n", "a listing has a command"),
        ("- item\n\n  ```bash\n  ls\n  ```\n", "inside a list"),
        ("<!-- not run: later -->\n```bash\nls\n```\n", "too little"),
        ("<!-- run on: other.md -->\n```bash\nls\n```\n", "other.md does not run"),
        ("<!-- output -->\n```text\n1\n```\n", "right after the block"),
    ],
)
def test_a_block_that_is_neither_run_nor_explained_is_a_fault(tmp_path: Path, text: str, says: str) -> None:
    (fault,) = faults(blocks(tmp_path, text), {})
    assert says in fault
    assert "page.md:" in fault


def test_a_mark_belongs_to_the_block_right_below_it_only(tmp_path: Path) -> None:
    first, second = blocks(tmp_path, "<!-- not run: needs a GPU -->\n```bash\na\n```\n\ntext\n\n```bash\nb\n```\n")
    assert (first.use, second.use) == ("shown", "run")


def test_commands_are_found_with_their_options(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert console_commands(page) == [("status", ["--storage-options"])]
