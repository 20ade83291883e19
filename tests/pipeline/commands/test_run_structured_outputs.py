"""Runs whose outputs have to be JSON, by the real engine: the typed column, rows' own schemas, counts, resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.commands.chain import chain_on
from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.export import export
from pipeline.commands.report import report
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, FingerprintError
from pipeline.plan.job import Job
from pipeline.plan.units import Work
from pipeline.prompts.model_files import resolved_model
from pipeline.storage.open import open_storage
from pipeline.types import CommitRecord
from pipeline.worker.load_engine import load_engine
from testing.pipeline.chains import ChainExecutor
from testing.pipeline.fakes import InlineExecutor, RealExecutor
from testing.pipeline.openai_batch import chat_line, completion_line, write_batch

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"anyOf": [{"enum": ["Oslo", "Lima"]}, {"type": "null"}]},
        "scores": {"type": "array", "items": {"enum": [0.5, 1.5, 2]}, "maxItems": 2},
        "either": {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 9}]},
    },
    "required": ["name", "age", "city", "scores", "either"],
    "additionalProperties": False,
}
TYPE = pa.struct([
    ("name", pa.string()), ("age", pa.int64()), ("city", pa.string()), ("scores", pa.list_(pa.float64())),
    ("either", pa.string()),
])  # fmt: skip
ROWS = [{"prompt": f"To JSON: {name} is {age}, lives in Oslo and likes books.", "cut": cut}
        for name, age, cut in (("Anna", 20, None), ("Ben", 31, 3), ("Rosa", 45, None), ("Tom", 60, None))]  # fmt: skip


def settings(output: Path, rows: Any = ROWS, schema: Any = SCHEMA, **more: Any) -> RunConfig:
    sampling = {"max_tokens": 96, "window_size": 8, **more.pop("sampling", {})}
    structured = {} if schema is None else {"structured_outputs": {"json": schema}}
    return RunConfig.from_mapping({
        "input": rows, "output": str(output), "model": "tiny", "unit_rows": 2, "chat": True, "report": False,
        "sampling": {**sampling, **structured}, **more,
    })  # fmt: skip


def run(config: RunConfig, executor: InlineExecutor | None = None) -> RunSummary:
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    return run_on(executor or RealExecutor(), config, storage, lambda progress: None)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSummary]:
    """A run of one schema with one row cut."""
    folder = tmp_path_factory.mktemp("typed")
    return folder / "out", run(settings(folder / "out", sampling_columns={"max_tokens": "cut"}))


def test_the_table_has_the_fields_of_the_schema_and_readers_see_them(typed: tuple[Path, RunSummary]) -> None:
    out, _ = typed
    table = pipeline.read(str(out)).to_arrow()
    assert table.schema.field("parsed").type == TYPE
    for row in table.to_pylist():
        if row["finish_reason"] == "length":
            assert row["parsed"] is None
        else:
            value = json.loads(row["text"])
            assert row["parsed"] == {**value, "either": json.dumps(value["either"])}
    files = f"{out}/data-*/*.parquet"
    ages = duckdb.sql(f"SELECT parsed.age, parsed.scores FROM '{files}' WHERE parsed IS NOT NULL").fetchall()
    assert [age for age, _ in ages] == [row["parsed"]["age"] for row in table.to_pylist() if row["parsed"]]
    frame = pd.read_parquet(next(out.glob("data-*/*.parquet")))
    assert frame["parsed"][0]["age"] == ages[0][0]


def test_what_could_not_be_completed_is_counted_everywhere(typed: tuple[Path, RunSummary]) -> None:
    out, summary = typed
    assert summary.total.unparsed == {"parsed:length": 1}
    assert "Not parsed: parsed: of 4 generations 1 cut at max_tokens" in summary.describe()
    page = Path(report(str(out), to=str(out.parent / "report.html"))).read_text(encoding="utf-8")
    assert "Not parsed: parsed: of 4 generations 1 cut at max_tokens." in page
    again = run(settings(out, sampling_columns={"max_tokens": "cut"}))
    assert again.total.unparsed == {"parsed:length": 1}, "the ledger has it"


class Killed(RealExecutor):
    """Commits one unit."""

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        yield next(super().run_units(job, work))
        raise KeyboardInterrupt


def test_a_killed_run_goes_on_with_its_schema_and_with_no_other(tmp_path: Path, typed: tuple[Path, RunSummary]) -> None:
    config = settings(tmp_path / "out", sampling_columns={"max_tokens": "cut"})
    with pytest.raises(KeyboardInterrupt):
        run(config, Killed())
    other = {**SCHEMA, "properties": {**SCHEMA["properties"], "age": {"type": "integer", "maximum": 121}}}  # type: ignore[dict-item]
    with pytest.raises(FingerprintError, match=r"sampling.structured_outputs: was .*120.*, is .*121"):
        run(settings(tmp_path / "out", schema=other, sampling_columns={"max_tokens": "cut"}))
    run(config)
    names = ["prompt", "row_id", "text", "parsed", "finish_reason"]
    whole, resumed = (pipeline.read(str(path)).to_arrow().select(names) for path in (typed[0], tmp_path / "out"))
    assert resumed.equals(whole)


def test_rows_have_schemas_of_their_own_and_bad_ones_fail_alone(tmp_path: Path) -> None:
    small = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 9}}, "required": ["age"],
             "additionalProperties": False}  # fmt: skip
    cells = [json.dumps(small), "{nope", '{"contains": {}}', '{"enum": []}', '{"choice": ["yes", "no"]}',
             json.dumps({"type": "json_schema", "json_schema": {"name": "n", "schema": small}}),
             '{"type": "text"}', None]  # fmt: skip
    rows = [{"prompt": "Count from 3 to 9.", "wanted": cell} for cell in cells]
    config = settings(tmp_path / "out", rows, None, sampling_columns={"structured_outputs": "wanted"},
                      parse={"parsed": {"json": True}})  # fmt: skip
    found = pipeline.validate(config)
    assert found.ok
    assert found.failed_rows == 3
    assert any("not JSON" in warning for warning in found.warnings)
    summary = run(config)
    assert (summary.total.rows, summary.total.failed_rows) == (8, 3)
    done = pipeline.read(str(tmp_path / "out")).to_arrow().to_pylist()
    assert [row["finish_reason"] == "error" for row in done] == [False, True, True, True, False, False, False, False]
    assert set(json.loads(done[0]["text"])) == set(json.loads(done[5]["text"])) == {"age"}
    assert json.loads(done[0]["parsed"]) == json.loads(done[0]["text"]), "JSON text, as each row has a type of its own"
    assert done[4]["text"] in ("yes", "no")
    assert done[4]["parsed"] is None
    assert done[6]["text"] == done[7]["text"], "free"
    letters = {row["wanted"]: row["error"] for row in pipeline.read(str(tmp_path / "out"), table="dead_letters")}
    assert set(letters) == set(cells[1:4])
    assert "wanted='{nope': not JSON" in letters["{nope"]
    assert "would not be enforced" in letters[str(cells[2])]
    assert all(message.endswith(".") for message in letters.values()), "each has a remedy"


def test_schemas_may_be_structs(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Count from 3 to 9.", "wanted": {"type": "string", "enum": ["a", "b"]}},
        {"prompt": "Count from 3 to 9.", "wanted": {"type": "integer", "maximum": 5, "minimum": 1}},
    ]
    run(settings(tmp_path / "out", rows, None, sampling_columns={"structured_outputs": "wanted"}))
    first, second = pipeline.read(str(tmp_path / "out"))
    assert json.loads(first["text"]) in ("a", "b")
    assert 1 <= json.loads(second["text"]) <= 5
    assert "parsed" not in first


def test_a_bad_schema_ends_every_command_before_anything_starts(tmp_path: Path) -> None:
    for schema, words in (
        ({"type": "object", "uniqueItems": True}, "structured_outputs.json#/uniqueItems=True: .*Remove duplicates"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "cannot be compiled"),
    ):
        config = settings(tmp_path / "out", schema=schema)
        (problem,) = [p for p in pipeline.validate(config).problems if p.startswith("ConfigError")]
        assert "sampling.structured_outputs.json" in problem
        for command in (pipeline.preview, pipeline.estimate, pipeline.run):
            with pytest.raises(ConfigError, match=words):
                command(config=config) if command is pipeline.run else command(config)  # type: ignore[operator]
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["ipc", "jsonl"])
def test_other_formats_hold_the_column_and_verify(tmp_path: Path, name: str) -> None:
    config = settings(tmp_path / "out", ROWS[:2], output_format=name, column_prefix="g_")
    run(config)
    table = pipeline.read(str(tmp_path / "out")).to_arrow()
    assert table.schema.field("g_parsed").type == TYPE
    assert all(row["age"] is not None for row in table["g_parsed"].to_pylist() if row)
    assert pipeline.verify(str(tmp_path / "out"), input=ROWS[:2]).ok


def test_bodies_ask_in_openais_words_and_in_vllms(tmp_path: Path) -> None:
    small = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"],
             "additionalProperties": False}  # fmt: skip
    named = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": small}}
    lines = [
        chat_line("schema", response_format=named),
        completion_line("guided", guided_choice=["left", "right"]),
        chat_line("fields", structured_outputs={"regex": "[0-9]{3}"}),
        chat_line("plain", response_format={"type": "text"}),
        chat_line("stop", response_format=named, stop=["x"]),
        chat_line("bad", response_format={"type": "json_schema", "json_schema": {"schema": {"contains": {}}}}),
    ]
    config = settings(tmp_path / "out", str(write_batch(tmp_path / "batch.jsonl", lines)), None, chat=False)
    summary = run(config)
    assert summary.total.failed_rows == 2
    done = export(str(tmp_path / "out"), str(tmp_path / "answers.jsonl"))
    answers = {line["custom_id"]: line["response"]["body"]["choices"][0]
               for line in map(json.loads, Path(done.to).read_text().splitlines())}  # fmt: skip
    assert set(json.loads(answers["schema"]["message"]["content"])) == {"n"}
    assert answers["guided"]["text"] in ("left", "right")
    assert answers["fields"]["message"]["content"].isdigit()
    errors = Path(done.errors_to).read_text()
    assert "structured_outputs says where the output ends" in errors
    assert "would not be enforced" in errors


def test_what_follows_the_tag_is_parsed(tmp_path: Path) -> None:
    digit = {"type": "integer", "minimum": 1, "maximum": 5}
    for tag in (", ", _special_tag()):
        out = tmp_path / str(len(tag))
        config = settings(out, [{"prompt": "Count from 3 to 9."}], None, chat=False,
                          sampling={"structured_outputs": {"json": digit, "after": tag}})  # fmt: skip
        run(config)
        (row,) = pipeline.read(str(out))
        if row["finish_reason"] == "stop":
            assert row["parsed"] in range(1, 6)
            assert row["text"].endswith(str(row["parsed"]))
        else:
            assert row["parsed"] is None


def _special_tag() -> str:

    raw = json.loads(resolved_model(RunConfig(input="i", output="o", model="tiny")).tokenizer.to_json())
    return [token["content"] for token in raw["added_tokens"] if token["special"]][-1]


def test_other_outputs_of_a_name_are_refused_and_a_prefix_helps(tmp_path: Path) -> None:
    rows = [{"prompt": "Count from 3 to 9.", "parsed": "mine"}]
    with pytest.raises(ConfigError, match=r"\['parsed'\] have names of output columns.*column_prefix"):
        run(settings(tmp_path / "out", rows))
    run(settings(tmp_path / "out", rows, column_prefix="g_"))
    schema = pq.read_schema(next((tmp_path / "out").glob("data-*/*.parquet")))
    assert schema.field("parsed").type == pa.string()
    assert schema.field("g_parsed").type == TYPE


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def closed(**fields: Any) -> dict[str, Any]:
    """An object of these fields, all of them required."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({}, "string"),
        (closed(), "string"),
        (
            closed(**{"text": DIGIT, "a.b": DIGIT, "\u00e9": DIGIT, "a b": DIGIT, "row_id": DIGIT, 'a"b': DIGIT}),
            "struct",
        ),
        (closed(**{"": DIGIT, "a": DIGIT}), "string"),
        (closed(a=DIGIT, A=DIGIT), "string"),
        ({"type": "array", "items": closed(a=DIGIT), "minItems": 1, "maxItems": 2}, "list"),
        (DIGIT, "int64"),
        ({"type": "null"}, "string"),
    ],
)
def test_schemas_of_odd_forms_and_names_are_read_by_all_readers(tmp_path: Path, schema: Any, kind: str) -> None:
    summary = run(settings(tmp_path / "out", ROWS[:1], schema, sampling={"n": 2, "temperature": 1.0}))
    assert summary.total.unparsed == {}
    files = f"{tmp_path}/out/data-*/*.parquet"
    rows = list(pipeline.read(str(tmp_path / "out")))
    assert str(pq.read_schema(next((tmp_path / "out").glob("data-*/*.parquet"))).field("parsed").type).startswith(kind)
    for (parsed,), row in zip(duckdb.sql(f"SELECT parsed FROM '{files}'").fetchall(), rows, strict=True):
        assert parsed == row["parsed"]
        assert (json.loads(parsed) if kind == "string" and parsed is not None else parsed) == json.loads(row["text"])


def test_retries_keep_what_is_parsed_and_filters_see_the_fields(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": None, "cut": None}]
    config = settings(tmp_path / "out", rows, closed(a=DIGIT), sampling={"n": 2, "temperature": 1.0},
                      sampling_columns={"max_tokens": "cut"})  # fmt: skip
    first = run(config)
    before = pipeline.read(str(tmp_path / "out")).to_arrow().select(["row_id", "text", "parsed"])
    again = run(replace(config, retry_failed=True))
    assert first.total.unparsed == again.total.unparsed == {"parsed:length": 2}
    assert pipeline.read(str(tmp_path / "out")).to_arrow().select(before.column_names).equals(before)
    pipeline.filter(str(tmp_path / "out"), to=str(tmp_path / "kept"), keep="parsed.a >= 3")
    kept = [row["parsed"]["a"] for row in pipeline.read(str(tmp_path / "kept"))]
    assert kept == [row["a"] for row in before["parsed"].to_pylist() if row is not None and row["a"] >= 3]


def test_a_later_stage_reads_the_fields_of_the_one_before(tmp_path: Path) -> None:
    base = settings(tmp_path / "out", ROWS[::2], closed(age=DIGIT))
    stages: list[dict[str, Any]] = [
        {"name": "write"},
        {"name": "judge", "prompt_template": "Rate {{ parsed.age }}", "where": "parsed.age >= 0",
         "sampling": {"structured_outputs": {"json": closed(score=DIGIT)}}},
        {"name": "free", "prompt_template": "Count from {{ judge_parsed.score }}.",
         "sampling": {"structured_outputs": None, "max_tokens": 4}},
    ]  # fmt: skip
    chain = ChainConfig.of(base, stages, None)
    storages = [open_storage(f"{tmp_path}/out/{name}", layout.SCRATCH) for name in ("write", "judge", "free")]
    chain_on([RealChain() for _ in chain.groups], chain, storages)
    rows = list(pipeline.read(str(tmp_path / "out" / "free")))
    assert len(rows) == 2
    assert all({*row["parsed"], *row["judge_parsed"]} == {"age", "score"} for row in rows)
    assert "free_parsed" not in rows[0]


class RealChain(ChainExecutor):
    """Does units of a chain with the engine that an actor would load."""

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        engine = load_engine(job, 1)
        self._engine = lambda: engine  # type: ignore[assignment,return-value]
        return super().run_units(job, work)


def test_a_delta_table_has_the_fields_and_refuses_names_that_it_lacks(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    run(settings(tmp_path / "out", ROWS[:1], closed(a=DIGIT)))
    pipeline.export_table(str(tmp_path / "out"), str(tmp_path / "delta"))
    (row,) = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()["parsed"].to_pylist()
    assert row["a"] in range(10)
    run(settings(tmp_path / "odd", ROWS[:1], closed(**{"a b": DIGIT})))
    with pytest.raises(ConfigError, match=r"'parsed'.*writes JSON text"):
        pipeline.export_table(str(tmp_path / "odd"), str(tmp_path / "odd-delta"))
