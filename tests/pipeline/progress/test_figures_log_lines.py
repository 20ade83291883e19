"""Lines of progress: when they are written, and that tools can parse them."""

from __future__ import annotations

import io
from dataclasses import replace

from pipeline.progress.figures import Lines, format_line
from pipeline.progress.snapshot import Actors, Load, Rates, ResourceSeconds, Snapshot, Stage
from pipeline.types import Totals

GOING = Snapshot(
    total_rows=1000, done=Totals(rows=400, failed_rows=2), session=Totals(completion_tokens=900, decode_forwards=300),
    at=20.0, stage=Stage.GENERATING, recent=Rates(rows_per_second=2, tokens_per_second=45),
    actors=Actors(ready=3, starting=1, most=8), load=Load(actors=3, kv_pages_used=5, kv_pages=10),
    used=ResourceSeconds(accelerators=120.0, cpus=480.0), price_per_hour=3.0, eta=300.0,
)  # fmt: skip


def pairs(line: str) -> dict[str, str]:
    word, *rest = line.split(" ")
    assert word == "progress"
    return {key: value for key, _, value in (pair.partition("=") for pair in rest)}


def test_a_line_has_every_figure_as_key_and_value() -> None:
    assert pairs(format_line(GOING)) == {
        "stage": "generating", "elapsed_s": "20.0", "rows": "400", "total_rows": "1000", "failed": "2",
        "tokens_per_s": "45", "rows_per_s": "2", "tokens_per_forward": "3.00", "kv_share": "0.50",
        "actors_ready": "3", "actors_starting": "1", "gpu_s": "120.0", "cpu_s": "480.0",
        "cost": "0.1", "eta_s": "300",
    }  # fmt: skip


def test_the_keys_are_the_same_when_nothing_is_known() -> None:
    empty = pairs(format_line(Snapshot()))
    assert list(empty) == list(pairs(format_line(GOING)))
    assert {empty[key] for key in ("total_rows", "tokens_per_s", "kv_share", "cost", "eta_s")} == {"-"}


def test_a_line_comes_at_once_with_each_stage_and_every_so_many_seconds_and_at_the_end() -> None:
    file = io.StringIO()
    lines = Lines(file, 10.0)
    planning = Snapshot(stage=Stage.PLANNING)
    moments = [0.0, 1.0, 9.9, 10.0, 12.0]
    for at in moments:
        lines.update(replace(planning, at=at))
    for at in (12.5, 13.0, 22.0, 22.5):
        lines.update(replace(GOING, at=at))
    lines.close(replace(GOING, at=23.0))
    shown = [(found["stage"], found["elapsed_s"]) for found in map(pairs, file.getvalue().splitlines())]
    assert shown == [
        ("planning", "0.0"), ("planning", "10.0"), ("generating", "12.5"), ("generating", "22.5"),
        ("generating", "23.0"),
    ]  # fmt: skip


def test_a_line_and_its_end_are_one_write_so_that_no_other_thread_writes_between() -> None:
    writes: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return super().write(text)

    Lines(Recorder()).update(GOING)
    assert writes == [format_line(GOING) + "\n"]
