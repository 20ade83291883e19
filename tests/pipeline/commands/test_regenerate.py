"""``verify`` with ``regenerate``: rows come out equal to the bit, and others are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pipeline
from jobs import verify as job
from pipeline import layout
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.run import run_on
from pipeline.commit.sealed import seal, unseal
from pipeline.commit.usage import Usage
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError
from pipeline.fingerprint import config_of, fingerprint_fields
from pipeline.progress.snapshot import ResourceSeconds
from pipeline.reporting.facts import Session
from pipeline.storage.local import LocalStorage
from testing.pipeline.fakes import InlineExecutor, RealExecutor
from wedlm_core.model.sources import resolve

FAILED = 5


def make(folder: Path, executor: InlineExecutor) -> Path:
    """``folder`` with ``in``, three files of four rows that share units, and ``out``."""
    (folder / "in").mkdir()
    for number in range(3):
        rows = [number * 4 + own for own in range(4)]
        lines = [{"prompt": None if row == FAILED else f"Count from {row} to {row + 4}."} for row in rows]
        (folder / "in" / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = RunConfig(
        input=str(folder / "in"), output=str(folder / "out"), model="tiny", chat=True, unit_rows=6,
        sampling=SamplingParams(max_tokens=12, n=2, temperature=0.8, logprobs=2),
        engine=EngineConfig(weight_dtype="int8", max_num_seqs=8),
    )  # fmt: skip
    run_on(executor, config, LocalStorage(config.output, layout.SCRATCH), lambda progress: None)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made"), RealExecutor())


def test_rows_are_equal_alone_and_in_another_batch(made: Path) -> None:
    found = pipeline.verify(made / "out", input=str(made / "in"), regenerate=100)
    assert found.ok, found.problems
    assert any("11 rows drawn at random" in line for line in found.proved)
    (record,) = (made / "out" / layout.AUDITS).iterdir()
    kept = unseal(record.read_bytes())
    assert kept["rows"] == [f"{row // 4}.jsonl:{row % 4}" for row in range(12) if row != FAILED]
    assert (kept["left_out"], kept["samples"], set(kept["equal"].values())) == (1, 22, {22})
    record.unlink()


def test_as_many_rows_are_drawn_as_are_asked_for(made: Path) -> None:
    drawn = set[str]()
    for _ in range(3):
        pipeline.verify(made / "out", input=str(made / "in"), regenerate=4)
    for record in (made / "out" / layout.AUDITS).iterdir():
        kept = unseal(record.read_bytes())
        assert len(kept["rows"]) + kept["left_out"] == 4
        drawn |= set(kept["rows"])
        record.unlink()
    assert len(drawn) > 4, "each time others"


def test_a_change_before_the_commit_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ledger, the checksums and the model are right, and other tokens were committed."""
    made = make(tmp_path, InlineExecutor())
    assert pipeline.verify(made / "out", input=str(made / "in")).ok
    found = pipeline.verify(made / "out", input=str(made / "in"), regenerate=2)
    assert not found.ok
    assert "token 0 is" in found.problems[0]
    assert any("the output: its values were changed" in note for note in found.notes)
    assert job.main([str(made / "out"), "--input", str(made / "in"), "--regenerate", "2"]) == 1
    assert "NOT proven" in capsys.readouterr().out


def test_another_model_is_named(made: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(resolve("tiny"), tmp_path / "other"))
    settings = json.loads((model / "config.json").read_text())
    settings["rms_norm_eps"] *= 100
    (model / "config.json").write_text(json.dumps(settings))
    found = pipeline.verify(made / "out", input=str(made / "in"), regenerate=12, model=str(model))
    assert any(note.startswith("likely cause: model") for note in found.notes) is not found.ok


def test_a_run_on_a_gpu_is_named(tmp_path: Path) -> None:
    made = make(tmp_path, InlineExecutor())
    storage = LocalStorage(str(made / "out"), layout.SCRATCH)
    Usage(storage=storage, epoch=9, since=0, used=lambda: ResourceSeconds(accelerators=7.0, cpus=7.0)).save()
    found = pipeline.verify(made / "out", input=str(made / "in"), regenerate=2)
    assert any("kind of processor: the run had a GPU" in note for note in found.notes)


def test_settings_of_a_record_are_read_back_as_they_were(tmp_path: Path) -> None:
    config = RunConfig(
        input="in", output=str(tmp_path), model="tiny", columns=["k"], sampling_columns={"seed": "s"}, limit=4,
        sampling=SamplingParams(logit_bias={5: 1.0}, logprobs=True, structured_outputs={"regex": "[a-z]"}, n=3),
        engine=EngineConfig(weight_dtype="int8", kv_cache_dtype="int8", streaming={"clip": False}),
        parse={"score": {"pattern": "([0-9]+)", "type": "int64"}},
    )  # fmt: skip
    recorded = json.loads(json.dumps(fingerprint_fields(config)))
    again = config_of(recorded, input="in", output=str(tmp_path), model="tiny")
    assert json.loads(json.dumps(fingerprint_fields(again))) == recorded


@pytest.mark.parametrize(("rows", "source"), [(3, None), (-1, "in")])
def test_rows_that_cannot_be_drawn_are_refused(made: Path, rows: int, source: str | None) -> None:
    with pytest.raises(ConfigError, match="regenerate="):
        pipeline.verify(made / "out", input=source and str(made / source), regenerate=rows)


def test_an_output_of_a_filter_is_refused_with_its_source(made: Path, tmp_path: Path) -> None:
    pipeline.filter(made / "out", to=tmp_path / "kept", keep="best 50%")
    with pytest.raises(OutputError, match="regenerate rows of that output"):
        pipeline.verify(tmp_path / "kept", input=str(made / "out"), regenerate=3)


def test_another_version_is_named(tmp_path: Path) -> None:
    made = make(tmp_path, InlineExecutor())
    storage = LocalStorage(str(made / "out"), layout.SCRATCH)
    session = Session(epoch=9, began=0.0, seconds=1.0, outcome="done", version="0.0.1")
    storage.put(layout.session(9), seal(session.to_dict()))
    found = pipeline.verify(made / "out", input=str(made / "in"), regenerate=2)
    assert any("version: of the run ['0.0.1']" in note for note in found.notes)
