"""Calibration: agreement measures, the search for a threshold, the sample, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.calibrate import main, report
from jobs.cli import parse_setting
from pipeline import RunConfig, SamplingParams
from pipeline.commands.calibrate import Calibration, CalibrationConfig, bounds, calibrate
from pipeline.commands.calibration_sample import (
    Answers,
    CalibrationSample,
    answer_agreement,
    extract,
    samples_to_show,
    token_agreement,
    wilson,
)
from wedlm_core import LLM

DEMO = "jobs/data/demo_prompts.parquet"
SAMPLING = SamplingParams(max_tokens=64, window_size=16)
SAMPLED = replace(SAMPLING, temperature=1.0)  # so that tokens filled early are wrong more often
ROWS = 10
FLOOR = 0.985


# ---- measures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    [(1.0, 200, 0.98115, 1.0), (0.5, 10, 0.23659, 0.76341), (0.0, 20, 0.0, 0.16113)],
)
def test_wilson_gives_the_tabled_interval(share: float, count: int, low: float, high: float) -> None:
    found = wilson(share, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "other", "share"),
    [([], [], 1.0), ([1, 2], [1, 2], 1.0), ([1, 2, 3, 4], [1, 9, 3], 0.5), ([1], [], 0.0), ([1, 2], [2, 1], 0.0)],
)
def test_tokens_agree_place_by_place_over_the_longer(ours: list[int], other: list[int], share: float) -> None:
    assert token_agreement(ours, other) == token_agreement(other, ours) == share


@pytest.mark.parametrize(
    ("text", "regex", "answer"),
    [
        (" 12 \n", None, "12"),
        ("Answer: 3\nAnswer: 45", r"Answer: (\d+)", "45"),
        ("3 then 45", r"\d+", "45"),
        ("none here", r"\d+", None),
        ("x", r"x(y)?", None),
    ],
)
def test_the_answer_is_the_last_match(text: str, regex: str | None, answer: str | None) -> None:
    assert extract(text, regex) == answer


def test_an_answer_is_good_where_it_is_the_verified_or_the_given_one() -> None:
    answers = Answers.of(["= 1", "= 2", "= 3", "no"], r"= (\d+)", ["1", 7, None, 5])
    assert answer_agreement(answers, ["so = 1", "= 7", "= 4", "= 5"]) == [1, 1, 0, 1]
    assert answer_agreement(answers, ["nothing", "= 2", "= 3", "nothing"]) == [0, 1, 1, 1]


@pytest.mark.parametrize("floor", [0.5, 0.9, 0.98, 0.999])
def test_no_smaller_sample_can_show_a_floor(floor: float) -> None:
    needed = samples_to_show(floor)
    assert needed is not None
    assert wilson(1.0, needed).low >= floor > wilson(1.0, needed - 1).low


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({0.0: True, 0.2: True}, (0.2, None)),
        ({0.4: False, 0.2: True, 0.0: True}, (0.2, 0.4)),
        ({0.0: True, 0.1: False, 0.2: True}, (0.0, 0.1)),
        ({0.0: False, 0.1: True}, (None, 0.0)),
        ({}, (None, None)),
    ],
)
def test_a_threshold_above_a_failure_does_not_count(
    held: dict[float, bool], expected: tuple[float | None, float | None]
) -> None:
    assert bounds(held) == expected


# ---- the search on the shipped model ----------------------------------------------------------------------


def config_of(source: object = DEMO, **changes: object) -> RunConfig:
    return replace(RunConfig(input=source, output="unused", model="tiny", sampling=SAMPLING), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def found() -> Calibration:
    wanted = CalibrationConfig(floor=FLOOR, rows=ROWS, refine=1)
    return calibrate(config_of(sampling=SAMPLED), wanted)


def test_the_setting_is_the_largest_that_keeps_the_floor_with_all_below_it(found: Calibration) -> None:
    assert found.threshold is not None
    estimates = {trial.threshold: trial.agreement.estimate for trial in found.trials}
    assert list(estimates) == sorted(t for t in estimates if t is not None)
    assert all(estimate >= FLOOR for t, estimate in estimates.items() if t is not None and t <= found.threshold)
    above = [t for t in estimates if t is not None and t > found.threshold]
    assert above, "this floor binds on these prompts"
    assert estimates[min(above)] < FLOOR
    assert min(above) - found.threshold < 0.6, "the gap was halved"
    assert (found.verified.agreement.estimate, found.samples) == (1.0, ROWS)


def test_the_agreement_told_is_that_of_the_engine(qwen3_folder: Path) -> None:
    prompts = ["one", "two", "three", "four"]
    params = SamplingParams(max_tokens=12, window_size=4)
    wanted = CalibrationConfig(floor=1e-9, rows=6, refine=0)
    config = config_of([{"prompt": p} for p in prompts], model=str(qwen3_folder), sampling=params)
    told = calibrate(config, wanted)
    assert told.samples == 4
    llm = LLM(str(qwen3_folder))

    def ids(params: SamplingParams) -> list[Sequence[int]]:
        return [g.token_ids for g in llm.generate(prompts, params)]

    verified = ids(params)
    for trial in told.trials:
        other = ids(replace(params, strategy="streaming", entropy_threshold=trial.threshold))
        mean = sum(map(token_agreement, verified, other)) / 4
        assert trial.agreement.estimate == pytest.approx(mean)
    assert told.trials[-1].agreement.estimate < 1, "else the comparison would not tell much"


@pytest.mark.parametrize(("seconds", "faster"), [(0.5, True), (0.97, False), (2.0, False)])
def test_a_threshold_is_advised_only_if_it_is_faster_than_verified(
    seconds: float, faster: bool, qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real output, with the seconds of a threshold for each one of ``verified`` given."""

    def timed(self: CalibrationSample, **sampling: object) -> tuple[pa.Table, float]:
        return generate(self, **sampling)[0], 1.0 if sampling["strategy"] == "verified" else seconds

    generate = CalibrationSample.generate
    monkeypatch.setattr(CalibrationSample, "generate", timed)
    params = SamplingParams(max_tokens=8, window_size=4, ignore_eos=True)
    config = config_of([{"prompt": "one"}, {"prompt": "two"}], model=str(qwen3_folder), sampling=params)
    wanted = CalibrationConfig(floor=1e-9, rows=2, refine=0)
    found = calibrate(config, wanted)
    assert (found.threshold, found.advised is not None) == (3.0, faster)
    told = report(found, wanted, window=4)
    assert ("verified is best already" in told) == (not faster)
    assert ("use: --set sampling.strategy=streaming" in told) == faster
    (marked,) = (line for line in told.splitlines() if line.endswith("<- use"))
    assert ("verified" in marked) == (not faster)


def test_the_command_prints_settings_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pq.read_table(DEMO).slice(100, 8).to_pylist()
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    argv = ["--input", str(tmp_path / "in.jsonl"), "--floor", "0.9", "--rows", "6", "--measure", "answer"]
    argv += ["--model", "tiny"]
    argv += ["--answer-column", "expected", "--set", "sampling.window_size=16", "--set", "sampling.max_tokens=64"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    printed = captured.out
    use = next(line for line in printed.splitlines() if line.startswith("use: "))
    settings = [parse_setting(text) for text in use.removeprefix("use: ").split() if text != "--set"]
    assert SamplingParams(**{name: value for one in settings for name, value in one["sampling"].items()})
    assert "streaming at 0.05: agreement" in captured.err, "progress is shown"
    assert "6 samples, answer agreement with verified, floor 0.9" in printed


# ---- the sample -------------------------------------------------------------------------------------------


def test_the_sample_is_the_same_every_time_and_from_all_over_the_input(tmp_path: Path) -> None:
    from pipeline.commands.run_checks import sampled
    from pipeline.prompts.tokenize import ROW_ID

    for part in range(2):
        table = pa.table({"prompt": [f"Count from {i} to {i + 3}." for i in range(part * 150, part * 150 + 150)]})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=40)
    config = replace(config_of(str(tmp_path / "*.parquet")), unit_rows=4)
    with sampled(config, 40) as (_, total, once), sampled(config, 40) as (_, _, again):
        assert total == 300
    assert once.equals(again)
    names = once[ROW_ID].to_pylist()
    places = [(name.split(":")[0], int(name.split(":")[1])) for name in names]
    assert len(set(places)) == 40
    assert places == sorted(places)
    assert {file for file, _ in places} == {"0.parquet", "1.parquet"}
    assert max(row for _, row in places) > 120
    prompts = once["prompt"].to_pylist()
    assert prompts == [f"Count from {row + 150 * int(file[0])} to {row + 150 * int(file[0]) + 3}."
                       for file, row in places]  # fmt: skip


# ---- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--floor", "1.2"], "floor=1.2"),
        (["--floor", "0"], "floor=0"),
        (["--floor", "0.9", "--rows", "0"], "rows=0"),
        (["--floor", "0.9", "--answer-column", "gold"], 'measure="answer"'),
        (["--floor", "0.9", "--measure", "answer", "--answer-regex", "("], "not a regular expression"),
        (["--floor", "0.9", "--measure", "answer", "--answer-regex", "@{7}"], "matches none of the 3 verified texts"),
        (["--floor", "0.9", "--measure", "answer", "--answer-column", "gold"], "columns='gold'"),
        (["--floor", "0.9", "--confident"], "be shown with 35 samples or more"),
        (["--floor", "1", "--confident"], "never be shown"),
        (["--floor", "0.9", "--set", "sampling_columns={entropy_threshold: k}"], "sampling_columns"),
        (["--floor", "0.9", "--set", "sampling.logprobs=true"], "logprobs"),
        (["--floor", "0.9", "--set", "prompt_column=k"], "every row of the sample failed"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_a_line(
    options: list[str], words: str, qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"prompt": ["one", "two", "three"], "k": [1, 2, 3]}), tmp_path / "in.parquet")
    argv = ["--input", str(tmp_path / "in.parquet"), "--model", str(qwen3_folder), *options]
    assert main([*argv, "--set", "sampling.window_size=4", "--set", "sampling.max_tokens=4"]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert "Traceback" not in printed.err


def test_a_floor_that_no_threshold_keeps_is_said_and_exits_1(
    qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"prompt": ["one", "two", "three"]}), tmp_path / "in.parquet")
    argv = ["--input", str(tmp_path / "in.parquet"), "--model", str(qwen3_folder), "--floor", "1"]
    argv += ["--strategy", "reference", "--set", "sampling.window_size=4", "--set", "sampling.max_tokens=16"]
    assert main(argv) == 1
    assert "no threshold of reference keeps the floor" in capsys.readouterr().out
