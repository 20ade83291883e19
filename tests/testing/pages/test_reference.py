"""The reference has every public name once, on the page of its kind."""

from __future__ import annotations

import importlib
import re

import wedlm_batch
from testing.pages.reference import KINDS, homes, kind_of, reference_pages
from testing.repository import ROOT


def test_every_public_name_is_found_where_the_reference_looks_for_it() -> None:
    assert set(homes(ROOT)) == set(wedlm_batch.__all__)
    for name, module in homes(ROOT).items():
        assert getattr(importlib.import_module(module), name) is getattr(wedlm_batch, name)


def test_every_name_is_on_one_page() -> None:
    found = [name for page in reference_pages(ROOT).values() for name in re.findall(r"heading: wb\.(\w+)", page)]
    assert sorted(found) == sorted(wedlm_batch.__all__)
    assert set(reference_pages(ROOT)) == {f"reference/{kind}.md" for kind in KINDS}


def test_kinds() -> None:
    kinds = {name: kind_of(name, module) for name, module in homes(ROOT).items()}
    named = {"run": "functions", "LLM": "llm", "Generation": "llm", "RunConfig": "settings",
             "SamplingParams": "settings", "Strategy": "settings", "RunResult": "results",
             "ConfigError": "errors"}  # fmt: skip
    assert named.items() <= kinds.items()
