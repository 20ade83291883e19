"""The keyword arguments of ``run`` are the fields of ``RunConfig``, with their types."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from pipeline.commands.run import run
from pipeline.commands.run_fields import RunFields
from pipeline.config import RunConfig

_POSITIONAL = {"input", "output"}


def _kinds(hint: Any) -> set[Any]:
    """The members of a union; of another type, itself."""
    return set(get_args(hint)) if str(hint).count(" | ") or "Union" in str(hint) else {hint}


def test_each_field_is_an_argument_of_its_type() -> None:
    configured, named = get_type_hints(RunConfig), get_type_hints(RunFields)
    assert named.keys() == configured.keys() - _POSITIONAL
    loose = {"parse", "pools"}  # mappings whose values may be mappings of fields, too
    narrower = [name for name in named.keys() - loose if not _kinds(configured[name]) <= _kinds(named[name])]
    assert not narrower


def test_the_signature_at_run_time_names_each_field_with_its_default() -> None:
    parameters = inspect.signature(run).parameters
    assert {field.name for field in fields(RunConfig)} - {"input"} <= parameters.keys()
    assert (parameters["seed"].default, parameters["mode"].default) == (0, "resume")
    with pytest.raises(TypeError):
        inspect.signature(run).bind("in.jsonl", output="out", modle="tiny")
