"""Results of benchmarks are kept by day and by processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import common, records


def test_a_result_takes_the_place_of_this_processors_and_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)

    def written(processor: str, body: str) -> None:
        monkeypatch.setattr(common, "_processor", lambda: processor)
        path = common.write_result("chaos", "Kills", "python -m it", body, threads=1)
        assert path.read_text(encoding="utf-8") == records.page("faults")

    epyc, xeon = "AMD EPYC (family 26, model 2)", "Intel(R) Xeon(R) Processor (family 6, model 207)"
    for processor, body in ((epyc, "1st"), (xeon, "2nd"), (xeon, "3rd"), ("Some CPU/9", "4th"), (epyc, "5th")):
        written(processor, body)
    notes = {line["run"].partition("-chaos")[2]: line["note"] for line in records.read("faults") if "note" in line}
    assert notes == {"-family-6-model-207": "3rd", "-some-cpu-9": "4th", "": "5th"}
