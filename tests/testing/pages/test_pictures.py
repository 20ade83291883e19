"""The stored pictures of the live view have the labels of today."""

from __future__ import annotations

import html
import re

import pytest

from pipeline.progress.figures import figures_of
from pipeline.progress.snapshot import Snapshot, Stage
from testing.pages.pictures import IMAGES


@pytest.mark.parametrize("name", ["progress.svg", "chain.svg"])
def test_labels_and_stages_are_those_of_the_live_view(name: str) -> None:
    svg = (IMAGES / name).read_text(encoding="utf-8")
    parts = [html.unescape(text).replace("\xa0", " ").strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
    stages = [found[1] for part in parts if (found := re.match(r"[✓●] ([a-z ]+) [\d.]+ s", part))]
    assert stages == [Stage.PLANNING, Stage.STARTING, Stage.LOADING, Stage.COMPILING, Stage.GENERATING]
    labels = set(figures_of(Snapshot(price_per_hour=1.0)))
    assert labels <= set(parts), "run: python -m testing.pages.pictures"
