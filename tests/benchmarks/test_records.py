"""Results are lines of data, and their pages are made of these lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import records

BODY = """A note.

| way | tokens/s | middle half | over | middle half |
| --- | --- | --- | --- | --- |
| verified | 120 | 1 to 2 | 1.50 | 3 to 4 |
| autoregressive | 80 |  | 1.00 | - |

## Large

```text
| no table |
```

| rows |
| --- |
| 7 |
"""


def test_rows_become_lines_that_keep_their_digits_and_their_section() -> None:
    lines = list(records.parse("2026-11-29-settings", BODY))
    first = {
        "way": "verified",
        "tokens/s": "120",
        "middle half": "1 to 2",
        "over": "1.50",
        "over: middle half": "3 to 4",
    }
    assert lines[1] == {"run": "2026-11-29-settings", "section": "", "values": first}
    assert lines[-1] == {"run": "2026-11-29-settings", "section": "Large", "values": {"rows": "7"}}
    assert [line["note"] for line in lines if "note" in line] == ["A note.", "```text\n| no table |\n```"]


def test_a_body_is_made_again_of_its_lines() -> None:
    lines = list(records.parse("run", BODY.replace("| over | middle half |", "| over | spread |")))
    again = records.render(lines).replace("### ", "## ")
    assert again == BODY.replace("| over | middle half |", "| over | spread |")


def test_pages_are_those_of_the_data() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in records.RESULTS.glob("*.md")}
    assert set(pages) == set(records.TOPICS), "results are lines of data/*.jsonl; write_result stores them"
    for topic in records.TOPICS:
        assert pages[topic] == records.page(topic), "run: python -m benchmarks.records"


def test_every_line_belongs_to_the_run_whose_head_precedes_it_and_to_its_topic() -> None:
    for topic in records.TOPICS:
        run = ""
        for line in records.read(topic):
            run = line["run"] if "title" in line else run
            assert line["run"] == run
            assert records.topic_of(run[len("2026-01-01-") :]) == topic
            assert ("title" in line) + ("values" in line) + ("note" in line) == 1


def test_a_command_of_a_result_runs_a_script_that_exists_or_names_the_commit_that_has_it() -> None:
    root = records.RESULTS.parents[1]

    def exists(script: str) -> bool:
        path = root / script.replace(".", "/")
        return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()

    heads = [line for topic in records.TOPICS for line in records.read(topic) if "title" in line]
    scripts = {script for head in heads for script in records.scripts_of(head["command"])}
    assert len(scripts) > 20
    assert {script for script in scripts if not exists(script)} == set(records.REMOVED)


def test_the_older_of_two_runs_of_a_name_is_only_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    for day, rate in (("2026-01-01", "81"), ("2026-01-02", "82")):
        run = f"{day}-chaos"
        head = {"run": run, "title": "Kills", "date": day, "command": "c", "machine": "m"}
        records.replace("faults", [head, *records.parse(run, f"| rate |\n| --- |\n| {rate} |")])
    page = records.page("faults")
    assert "| 82 |" in page
    assert "| 81 |" not in page
    assert "| `2026-01-01-chaos` | Kills | m |" in page


def test_a_report_of_another_machine_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    head = "# Loads\n\n- Command: `c --x`\n- Date: 2026-01-02\n- Machine: a GPU,\n  16 cores\n- It took 4 s.\n\n"
    assert records.take("gpu-load", head + BODY) == tmp_path / "gpu.md"
    first, *rest = records.read("gpu")
    assert first == {
        "run": "2026-01-02-gpu-load",
        "title": "Loads",
        "date": "2026-01-02",
        "command": "c --x",
        "machine": "a GPU, 16 cores",
    }
    assert rest == list(records.parse("2026-01-02-gpu-load", BODY))


def test_a_name_without_a_topic_is_an_error() -> None:
    with pytest.raises(ValueError, match="surprise: no topic takes this name"):
        records.topic_of("surprise")


def test_figures_of_the_overview_are_in_the_topics_that_their_section_links() -> None:
    overview = (records.RESULTS.parent / "README.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", re.sub(r"`[^`]*`|\d{4}-\d\d-\d\d", "", overview), flags=re.MULTILINE)[1:-1]
    assert len(sections) == 10
    for section in sections:
        topics = re.findall(r"\(results/(\w+)\.md\)", section)
        data = "".join((records.RESULTS / "data" / f"{topic}.jsonl").read_text(encoding="utf-8") for topic in topics)
        figures = re.findall(r"(?<![\w.,])\d+\.\d+(?![\w.])|(?<![\w.,])\d{3,5}(?![\w.,])", section)
        assert len(figures) >= 2
        assert not [one for one in figures if not re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", data)], section[:60]
