"""Results of benchmarks are kept by day and by processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import common


def test_a_result_takes_the_place_of_this_processors_and_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)

    def written(processor: str, body: str) -> str:
        monkeypatch.setattr(common, "_processor", lambda: processor)
        return common.write_result("speed", "Speed", "python -m it", body, threads=1).name.partition("-speed")[2]

    epyc, xeon = "AMD EPYC (family 26, model 2)", "Intel(R) Xeon(R) Processor (family 6, model 207)"
    assert written(epyc, "first") == ".md"
    assert written(xeon, "second") == written(xeon, "third") == "-family-6-model-207.md"
    assert written("Some CPU/9", "fourth") == "-some-cpu-9.md"
    assert written(epyc, "fifth") == ".md"
    texts = {path.read_text().split()[-1] for path in tmp_path.iterdir()}
    assert texts == {"third", "fourth", "fifth"}
