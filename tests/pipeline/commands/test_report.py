"""The report of an output: its numbers are those of the rows, its text is text, and it never fails a run."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.codec import RequestError
from pipeline.commands.read import read
from pipeline.commands.report import gather, report
from pipeline.commands.run_report import load_sessions
from pipeline.errors import ConfigError, LeaseLostError, OutputError
from pipeline.reporting.histogram import Labels
from pipeline.reporting.page import render
from pipeline.storage.local import LocalStorage
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import FakeEngine, InlineExecutor

MakeJob = Callable[[], SmallJob]
ATTACK = "</script><img src=x onerror=alert(1)>\"'&\x00\u202e"


class Tags(html.parser.HTMLParser):
    """The contents of a page, as a browser's parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(job: SmallJob) -> str:
    return job.storage.read(layout.REPORT_PAGE).decode()


def test_a_run_writes_a_page_whose_numbers_are_those_of_its_rows(make_job: MakeJob) -> None:
    job = make_job()
    summary = job.run()
    data = read(job.config.output).to_pandas()
    facts = gather(job.storage)
    ok = data[data.finish_reason != "error"]
    assert replace(facts.totals, examples={}) == replace(summary.total, examples={})
    assert facts.aggregate.rows == len(data)
    lengths = facts.aggregate.histograms["completion_tokens"]
    assert lengths.mean == pytest.approx(ok.completion_tokens.mean())
    assert ok.completion_tokens.sum() == facts.totals.completion_tokens
    assert facts.aggregate.finish_reasons == data.finish_reason.value_counts().to_dict()
    dead = read(job.config.output, table="dead_letters").to_pandas()
    assert dict(facts.totals.failures) == dead.error_class.value_counts().to_dict()
    shown = Tags(page_of(job)).text
    assert f"Rows ok{22 - 2}" in shown.replace(" ", "").replace("Rowsok", "Rows ok")
    assert str(int(ok.completion_tokens.sum())) in shown
    assert all((own.example or "")[:60] in shown for own in facts.totals.failed_by_cause), "an example of each cause"


def test_the_time_line_of_a_run_is_kept_and_its_sums_are_the_sessions(make_job: MakeJob) -> None:
    job = make_job()
    job.stop_after(2)
    job.run(price_per_hour=3.0)
    first, second = load_sessions(job.storage)
    assert first.outcome == "Stopped"
    assert second.outcome == "done"
    assert first.rows + second.rows == 22
    data = read(job.config.output).to_pandas()
    assert first.tokens + second.tokens == data.completion_tokens.sum()
    assert second.moments[-1].tokens == second.tokens
    assert second.price_per_hour == 3.0


def test_a_run_that_ends_early_leaves_a_page_that_says_so(make_job: MakeJob) -> None:
    job = make_job()
    job.stop_after(2)
    text = Tags(page_of(job)).text
    assert "8 of 22 rows done" in text
    assert "ended before all rows that are committed were published" in text
    report(job.config.output)
    assert "the charts are about all that are committed" in Tags(page_of(job)).text


def test_a_run_with_nothing_to_do_leaves_the_page_as_it_is(make_job: MakeJob) -> None:
    job = make_job()
    job.run()
    before = page_of(job)
    job.run()
    assert page_of(job) == before
    assert len(load_sessions(job.storage)) == 1


def test_whatever_goes_wrong_with_a_report_the_run_is_done(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(facts: Any) -> str:
        raise RuntimeError("no page today")

    job = make_job()
    monkeypatch.setattr("pipeline.commands.run_report.render", fails)
    assert job.run().total.rows == 22
    assert "the report could not be written" in caplog.text
    assert not job.storage.exists(layout.REPORT_PAGE)


def test_a_run_that_lost_its_output_writes_no_report(make_job: MakeJob) -> None:
    class Loses(InlineExecutor):
        def run_units(self, job: Any, work: Any) -> Any:
            yield from super().run_units(job, work)
            raise LeaseLostError("another run took over")

    job = make_job()
    with pytest.raises(LeaseLostError):
        job.run(Loses())
    assert not job.storage.exists(layout.REPORT_PAGE)


def attacked(job: SmallJob) -> None:
    """The job, with an attack in each text of a row: the name of its file, and of a column, and its value."""
    folder = job.source.parent / "in <svg onload=alert(2)>"
    folder.mkdir()
    table = pa.table({"prompt": ["", *(f"Count from 1 to {i}." for i in range(8))], ATTACK: [ATTACK] * 9})
    pq.write_table(table, folder / "a.parquet")
    job.config = replace(job.config, input=str(folder))


class Refuses(FakeEngine):
    def add(self, request: Any) -> None:
        raise RequestError("not today")


class Attacker(FakeEngine):
    said = ATTACK

    def step(self) -> list[Any]:
        return [replace(generation, text=self.said) for generation in super().step()]


class Leaks(Attacker):
    said = "s3://key:hunter2secret@bucket/x"


def test_text_of_rows_stays_text(make_job: MakeJob) -> None:
    job = make_job()
    attacked(job)
    job.run(InlineExecutor(engine=Attacker), columns=None)
    text = page_of(job)
    found = Tags(text)
    assert "</script><img src=x onerror=alert(1)>" in found.text, "it is shown as it is"
    assert "img" not in found.tags
    assert found.tags.count("script") == 1
    assert found.tags.count("title") == 1 + text.count('role="img"') + text.count('<g class="mark">'), "no other"
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "\x00" not in text


def test_the_policy_of_the_page_allows_its_own_scripts_alone(make_job: MakeJob) -> None:
    job = make_job()
    job.run()
    text = page_of(job)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2, "of the style and of the script"
    assert not re.findall(r"(?:src|href)=\"(?!#)", text), "nothing is fetched"
    assert " style=" not in text, "the policy would refuse it"
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_credentials_are_masked(make_job: MakeJob) -> None:
    job = make_job()
    job.run(InlineExecutor(engine=Leaks))
    assert "hunter2secret" not in page_of(job)
    assert "***@bucket/x" in Tags(page_of(job)).text


def test_the_command_writes_to_a_file_and_says_what_is_wrong(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    with pytest.raises(OutputError, match="no run was begun"):
        pipeline.report(job.config.output)
    job.run()
    path = pipeline.report(job.config.output, to=tmp_path / "new" / "r.html")
    assert Path(path).read_text(encoding="utf-8").startswith("<!doctype html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        pipeline.report(job.config.output, to=tmp_path / "file" / "r.html")


def test_a_page_goes_neither_among_the_rows_nor_into_a_folder_named_like_a_url(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.run()
    monkeypatch.chdir(tmp_path)
    before = sorted(Path(job.config.output).rglob("*"))
    for place in ("report.html", "data-000000/report.html", layout.RUN):
        with pytest.raises(OutputError, match="lies inside"):
            pipeline.report(job.config.output, to=Path(job.config.output) / place)
    assert sorted(Path(job.config.output).rglob("*")) == before
    with pytest.raises(OutputError, match="a URL"):
        pipeline.report(job.config.output, to="s3://bucket/report.html")
    assert not (tmp_path / "s3:").exists()


def test_the_report_of_a_filter_tells_what_was_kept_and_dropped(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    job.run()
    done = pipeline.filter(job.config.output, to=tmp_path / "best", keep="best 50%")
    facts = gather(LocalStorage(tmp_path / "best", layout.SCRATCH))
    assert facts.complete
    assert facts.state == f"{done.kept} of {done.rows} rows kept"
    assert facts.dropped == sum(done.dropped.values())
    assert facts.aggregate.rows == done.kept
    text = Tags(Path(pipeline.report(tmp_path / "best")).read_text(encoding="utf-8")).text
    assert f"Rows kept{done.kept}of {done.rows}" in text
    for reason, count in done.dropped.items():
        assert f"{count} {reason}" in text
    with pytest.raises(ConfigError, match="made by `filter`"):
        pipeline.report(tmp_path / "best", model="tiny")


def test_outputs_with_nothing_good_in_them_have_a_report(make_job: MakeJob) -> None:
    job = make_job()
    job.run(InlineExecutor(engine=Refuses))
    text = Tags(page_of(job)).text
    assert "done, every row failed" in text
    assert "Tokens per forward" not in text
    one = make_job()
    pq.write_table(pa.table({"prompt": ["Count from 1 to 3."]}), one.source)
    one.run()
    assert 'id="failures"' in page_of(one), "how rows ended, also where none failed"


def test_the_charts_of_the_page_have_tables_with_the_numbers_of_the_rows(make_job: MakeJob) -> None:
    job = make_job()
    job.run()
    data = read(job.config.output).to_pandas()
    lengths = data[data.finish_reason != "error"].completion_tokens.astype(int)
    (figure,) = re.findall(r'<figure class="chart" id="outputs">.*?</figure>', page_of(job), re.DOTALL)
    rows = re.findall(r"<tr><td>(\d+) to \d+</td><td>(\d+) \(", figure)
    assert {int(size): int(own) for size, own in rows} == lengths.value_counts().to_dict()
    assert pd.Series(lengths).max() <= 16, "each length has a bin of its own"


def test_values_that_repeat_are_counted_as_labels_and_others_are_not(make_job: MakeJob) -> None:
    job = make_job()
    job.run()
    facts = gather(job.storage)
    assert 'id="labels"' not in page_of(job), "each text is another one"
    labels: Labels = {"parsed.mood": {"good": 6, "<b>bad": 14}, "text": None, "parsed.name": {"a": 1, "b": 1}}
    page = render(replace(facts, aggregate=replace(facts.aggregate, labels=labels)))
    text = Tags(page).text
    assert re.search(r"parsed\.mood\s*Rows\s*Share\s*<b>bad\s*14\s*70%\s*good\s*6\s*30%", text)
    assert "parsed.name" not in text
    assert ("href", "#labels") in Tags(page).attributes


def test_two_outputs_are_compared_by_settings_speed_and_quality(make_job: MakeJob) -> None:
    first, second = make_job(), make_job()
    first.run()
    second.run(sampling=replace(second.config.sampling, max_tokens=3))
    found = pipeline.compare(first.config.output, second.config.output)
    assert [(line.name, line.second) for line in found.settings] == [("sampling.max_tokens", "3")]
    data = [read(job.config.output).to_pandas() for job in (first, second)]
    quality = {line.name: line[1:] for line in found.quality}
    assert quality["Rows ok"] == tuple(str(own[own.finish_reason != "error"].row_id.nunique()) for own in data)
    lengths = [own.completion_tokens[own.finish_reason != "error"].mean() for own in data]
    assert [float(own) for own in quality["Mean output length"]] == pytest.approx(lengths, rel=1e-2)
    assert "Tokens per forward" in {line.name for line in found.speed}
    text = found.describe()
    assert len({line.index("3") for line in text.splitlines() if line.startswith("  sampling.max_tokens")}) == 1
    same = pipeline.compare(first.config.output, first.config.output)
    assert not same.settings
    assert all(line.first == line.second for line in (*same.speed, *same.quality))


def test_the_least_certain_rows_are_listed_first_and_those_of_the_table(make_job: MakeJob) -> None:
    job = make_job()
    job.run()
    data = read(job.config.output).to_pandas()
    made = [row for row in data.itertuples() if row.stats is not None]
    made.sort(key=lambda row: (-row.stats["mean_entropy"], row.row_id, row.sample_index))
    rows = gather(job.storage).aggregate.uncertain
    assert [row[1:3] for row in rows] == [(row.row_id, row.sample_index) for row in made]
    section = page_of(job).split('<section id="rows">')[1].split("</section>")[0]
    shown = re.findall(r"<td>(a\.parquet:\d+)(?: \((\d+)\))?</td>", section)
    assert [(name, int(sample or 0)) for name, sample in shown] == [row[1:3] for row in rows]
