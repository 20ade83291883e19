"""Configuration: refusals, pools, unit sizes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pipeline.codec import SamplingParams
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.fingerprint import fingerprint_fields
from pipeline.settings.pools import ActorRange


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"sampling": {"temperature": -1}}, r"sampling\.temperature=-1"),
        ({"engine": {"page_size": 3}}, r"engine\.page_size=3"),
        ({"actors": 0}, "actors=0"),
        ({"mode": "again"}, "mode='again'"),
        ({"prompt_column": "a", "messages_column": "b"}, "at most one"),
        ({"sampling_columns": {"heat": "t"}}, "heat"),
        ({"columns": "abc"}, "columns"),
        ({"gpus_per_actor": "all"}, "gpus_per_actor"),
        ({"on_long_prompt": "cut"}, "on_long_prompt='cut'"),
        ({"max_failed_fraction": 1.5}, "max_failed_fraction=1.5"),
        ({"max_failed_fraction": 10**400}, "max_failed_fraction="),
        ({"stop_seconds": 10**400}, "stop_seconds="),
        ({"max_row_deaths": 0}, "max_row_deaths=0"),
        ({"retry_failed": True, "mode": "new"}, "retry_failed"),
        ({"prompt_template": "{{ a", "output": "o"}, "not a Jinja template"),
        ({"prompt_template": "{{ a }}", "prompt_column": "b"}, "at most one"),
        ({"input": ""}, "input='': a path, URL or name. Name a file"),
        ({"output": ""}, "output='': a folder"),
        ({"input": "a\0b"}, "input=.*without NUL"),
        ({"sampling": {"structured_outputs": {"json": {"file": ""}}}}, r"json\.file='': a path. Write"),
        ({"sampling": {"structured_outputs": {"choice": [""]}}}, "none of them empty"),
        ({"served_model_names": [""]}, "served_model_names="),
        ({"revision": ""}, "revision=''"),
        ({"chat": ""}, "chat='': true or false"),
        ({"column_prefix": None}, "column_prefix=None: text"),
        ({"id_column": ["id"]}, "id_column=.*: text"),
    ],
)
def test_bad_configurations_name_field_rule_and_remedy(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunConfig.from_mapping({"input": "x", "output": "y", **raw})


@pytest.mark.parametrize("name", [one.name for one in fields(RunConfig)])
def test_a_value_of_any_kind_is_taken_or_refused_by_its_field(name: str) -> None:
    for value in (None, "", [], {}, 0, -1, True, ["x"], [None], {"": ""}, {"a": None}, 1.5, float("nan"), "\0", {1: 2}):
        try:
            assert fingerprint_fields(RunConfig.from_mapping({"input": "x", "output": "y", name: value}))
        except ConfigError as error:
            message = str(error)
            assert name in message, value


@pytest.mark.parametrize(
    ("name", "near"), [("promt_column", "prompt_column"), ("max_tokens", "sampling.max_tokens"), ("actor", "actors")]
)
def test_an_unknown_field_in_code_is_named_with_the_nearest_as_in_yaml(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"field='{name}'.*Did you mean '{near}'"):
        RunConfig(input="x", output="y", **{name: 1})


@pytest.mark.parametrize("name", ["input", "output", "model"])
def test_a_name_that_is_not_utf_8_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.*in UTF-8"):
        RunConfig.from_mapping({"input": "x", "output": "y", name: "o\udcff"})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ConfigError, match="output"):
        RunConfig.from_mapping({"input": "x"})


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"actors": {"min": 2}}, "a range has a max"),
        ({"actors": {"min": 4, "max": 2}}, r"actors\.min=4: at most actors\.max, which is 2"),
        ({"actors": {"min": -1, "max": 2}}, r"actors\.min=-1"),
        ({"actors": {"max": True}}, r"actors\.max=True"),
        ({"actors": {"max": 2, "maximum": 3}}, "maximum=3.*Did you mean 'max'"),
        ({"actors": {"max": 2, "idle_seconds": -1}}, r"actors\.idle_seconds=-1"),
        ({"actors": "many"}, "actors='many'"),
        ({"actors": 2, "pools": {"a": {}}}, "each of the pools says how many it has"),
        ({"pools": {"A b": {}}}, "pools='A b'"),
        ({"pools": 3}, "pools=3"),
        ({"pools": {"a": 3}}, r"pools\.a=3"),
        ({"pools": {"a": {"actor": 1}}}, "Did you mean 'actors'"),
        ({"pools": {"a": {"engine": {"max_window": 8}}}}, r"pools\.a\.engine\.max_window=8: it bears on tokens"),
        ({"pools": {"a": {"engine": {"weight_dtype": "int8"}}}}, "it bears on tokens"),
        ({"pools": {"a": {"engine": {"page_sizes": 8}}}}, "no such engine setting"),
        ({"pools": {"a": {"engine": {"page_size": 7}}}}, r"pools\.a: page_size=7"),
        ({"pools": {"a": {"device": "cpu"}, "b": {"device": "cuda"}}}, "dtype='auto': pools on CPU and on GPU"),
        ({"gpus_per_actor": 1.5}, "a share of one GPU, or a whole number"),
        ({"pools": {"a": {"gpus_per_actor": 1.5}}}, r"pools\.a: gpus_per_actor=1\.5"),
        ({"resources_per_actor": {"GPU": 1}}, "none of Ray's own"),
        ({"resources_per_actor": {"spot": 1.5}}, r"resources_per_actor\.spot=1\.5"),
        ({"accelerator_type": ""}, "accelerator_type=''"),
        ({"actors_per_node": 0}, "actors_per_node=0"),
    ],
)
def test_ranges_and_pools_that_cannot_be_are_refused(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunConfig.from_mapping({"input": "x", "output": "y", **raw})


def test_a_pool_is_the_run_with_its_own_resources_and_engine_and_the_same_fingerprint() -> None:
    raw = {"input": "x", "output": "y", "cpus_per_actor": 2, "engine": {"max_num_seqs": 8, "page_size": 16}}
    pools = {"fast": {"actors": {"min": 0, "max": 3}, "gpus_per_actor": 0.5, "accelerator_type": "H100",
                      "engine": {"max_num_seqs": 32, "gpu_memory_utilization": 0.8}},
             "slow": {"resources_per_actor": {"spot": 1}, "actors_per_node": 2, "num_threads": 3}}  # fmt: skip
    config = RunConfig.from_mapping({**raw, "pools": pools})
    fast, slow = config.runs_of_pools().values()
    assert (fast.engine.max_num_seqs, fast.engine.page_size, fast.cpus_per_actor) == (32, 16, 2)
    assert fast.actor_engine.gpu_memory_utilization == pytest.approx(0.4)
    assert (slow.engine, slow.actors, slow.actors_per_node, slow.num_threads) == (config.engine, 1, 2, 3)
    assert (config.most_actors, fast.most_actors, slow.most_actors) == (4, 3, 1)
    alone = RunConfig.from_mapping(raw)
    assert alone.runs_of_pools() == {"": alone}
    ranged = RunConfig.from_mapping({**raw, "actors": {"max": 9}, "resources_per_actor": {"spot": 1}})
    assert ranged.actors == ActorRange(min=1, max=9)
    for other in (config, fast, slow, ranged):
        assert fingerprint_fields(other) == fingerprint_fields(alone)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 512), (256, 32), (10_000, 8), (0, 512)])
def test_units_are_sized_by_expected_tokens(tokens: int, rows: int) -> None:
    config = RunConfig(input="x", output="y", sampling=SamplingParams(max_tokens=tokens))
    assert config.resolved_unit_rows() == rows
    assert 2 <= config.resolved_units_in_flight(rows) <= 64
