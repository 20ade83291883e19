"""Resources of actors, and wishes that no cluster can meet: plain arithmetic, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cluster import resources
from pipeline.cluster.resources import fit_actors, fit_pools, local_cpus, local_node, surplus_actors
from pipeline.config import RunConfig
from pipeline.errors import ResourceError
from testing.repository import ROOT

LAPTOP = [{"CPU": 2.0}]
SERVER = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 4.0}]


def config(**fields: Any) -> RunConfig:
    return RunConfig(input="i", output="o", **fields)


@pytest.mark.parametrize(
    ("fields", "nodes", "words"),
    [
        ({"actors": 64}, LAPTOP, r"actors=64: the cluster has 2 CPU, enough for 6 actors.*Lower actors to 6"),
        ({"actors": 7}, LAPTOP, "enough for 6 actors"),
        ({"actors": 9}, SERVER, "has room for 8"),
        ({"actors": 2, "cpus_per_actor": 1}, LAPTOP, "reserve every CPU"),
        ({"gpus_per_actor": 1}, LAPTOP, "has room for 0"),
        ({"device": "cuda"}, LAPTOP, r"device='cuda': there is no GPU here"),
        ({"device": "cuda:1"}, SERVER, r"device='cuda:1': an actor sees the 1 GPU that it reserves"),
        ({"device": "cuda:2", "gpus_per_actor": 2}, SERVER, "sees the 2 GPUs"),
    ],
)
def test_what_the_cluster_cannot_hold_or_use_is_refused(fields: Any, nodes: Any, words: str) -> None:
    with pytest.raises(ResourceError, match=words):
        fit_actors(config(**fields), nodes)
    fit_actors(config(**fields, expect_autoscaling=True), nodes)


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [({"actors": 6}, LAPTOP), ({"actors": 8}, SERVER), ({"actors": 64, "cpus_per_actor": 0.01}, LAPTOP),
     ({"device": "cuda"}, SERVER), ({"device": "cuda:1", "gpus_per_actor": 2}, SERVER),
     ({"device": "cuda:3", "gpus_per_actor": 0}, SERVER)],
)  # fmt: skip
def test_what_it_can_hold_is_not(fields: Any, nodes: Any) -> None:
    assert fit_actors(config(**fields), nodes).actors == fields.get("actors", 1)


@given(actors=st.integers(1, 50), units=st.integers(0, 60), cpus=st.integers(1, 64))
def test_there_are_never_more_actors_than_units_and_the_threads_do_not_follow_them(
    actors: int, units: int, cpus: int
) -> None:
    wish = config(actors=actors, cpus_per_actor=0.01)
    found = fit_actors(wish, [{"CPU": float(cpus)}], units)
    assert found.actors == min(actors, max(1, units))
    assert found.threads == fit_actors(wish, [{"CPU": float(cpus)}]).threads
    said = surplus_actors(wish, units)
    assert (said is None) == (found.actors == actors)
    assert said is None or f"actors={actors}" in said


@pytest.mark.parametrize(
    ("fields", "nodes", "most", "cpus"),
    [
        ({"actors": {"min": 1, "max": 64}}, LAPTOP, 2, 0.75),
        ({"actors": {"min": 0, "max": 1}}, LAPTOP, 1, 1.0),
        ({"actors": {"min": 9, "max": 64}, "cpus_per_actor": 1}, LAPTOP, 1, 1.0),
        ({"actors": {"min": 1, "max": 64}}, [{"CPU": 3.0}], 3, 0.75),
        ({"actors": {"max": 64}, "resources_per_actor": {"slot": 1}}, [{"CPU": 16.0, "slot": 3.0}], 3, 0.75),
        ({"actors": {"max": 64}, "gpus_per_actor": 0.5}, SERVER, 16, 0.75),
        ({"actors": {"max": 64}, "gpus_per_actor": 0.6}, SERVER, 8, 0.75),
        ({"actors": {"max": 64}, "accelerator_type": "H100"}, [*SERVER, {"GPU": 2.0, "CPU": 8.0,
                                                               "accelerator_type:H100": 1.0}], 2, 0.75),
        ({"actors": {"max": 64}, "actors_per_node": 2}, SERVER, 4, 0.75),
    ],
)  # fmt: skip
def test_a_range_takes_as_many_as_fit_and_leaves_cpus_for_the_tasks(
    fields: Any, nodes: Any, most: int, cpus: float
) -> None:
    (found,) = fit_pools(config(**fields), nodes, private=True).values()
    assert (found.actors, found.cpus, found.grows) == (most, cpus, False)
    assert found.least <= found.actors
    (capped,) = fit_pools(config(**fields), nodes, units=1, private=True).values()
    assert capped.actors == 1


def test_a_range_of_which_none_fits_is_refused_unless_nodes_may_come() -> None:
    wish = config(actors={"min": 0, "max": 4}, gpus_per_actor=1)
    with pytest.raises(ResourceError, match=r"actors=0 to 4 with .* 1 GPU each: .* has room for 0"):
        fit_pools(wish, LAPTOP, private=True)
    with pytest.raises(ResourceError, match="reserve every CPU"):
        fit_pools(config(actors={"max": 4}, cpus_per_actor=2), LAPTOP)
    (found,) = fit_pools(wish, LAPTOP).values()
    assert (found.actors, found.least, found.grows) == (4, 0, True)
    (cuda,) = fit_pools(config(actors={"max": 4}, device="cuda"), LAPTOP).values()
    assert (cuda.gpus, cuda.grows) == (1.0, True)


def test_pools_share_a_cluster_and_the_one_that_finds_no_room_is_named() -> None:
    pools = {"big": {"actors": 3, "gpus_per_actor": 2}, "rest": {"actors": {"max": 9}, "gpus_per_actor": 1}}
    found = fit_pools(config(pools=pools), SERVER, private=True)
    assert {name: own.actors for name, own in found.items()} == {"big": 3, "rest": 2}
    pools["more"] = {"actors": 1, "gpus_per_actor": 1}
    with pytest.raises(ResourceError, match=r"pools\.more: actors=1 with .* has room for 0"):
        fit_pools(config(pools=pools), SERVER, private=True)
    said = surplus_actors(config(pools={"a": {"actors": 5}}), 2)
    assert said is not None
    assert said.startswith("pools.a.actors=5")


@pytest.mark.parametrize(
    ("files", "quota"),
    [({"cpu.max": "150000 100000\n"}, 1.5), ({"cpu.max": "max 100000\n"}, None), ({}, None),
     ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
     ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None)],
)  # fmt: skip
def test_the_quota_of_a_container_counts(
    files: dict[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    assert resources._quota() == quota
    assert 1 <= local_cpus() <= (quota or 10**6)
    assert local_node()["CPU"] == local_cpus()


def test_a_validation_brings_neither_ray_nor_torch(qwen3_folder: Path, tmp_path: Path) -> None:
    code = f"""
import sys, pipeline
rows = [{{"prompt": "Count."}}]
found = pipeline.validate(pipeline.RunConfig(input=rows, output={str(tmp_path / "o")!r}, model={str(qwen3_folder)!r},
                                             sampling=pipeline.SamplingParams(max_tokens=4)))
print(found.problems, sorted({{"ray", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "() []", done.stdout + done.stderr


@pytest.mark.parametrize("fields", [{"gpus_per_actor": 1}, {"actors": 2, "cpus_per_actor": 2}, {"device": "cuda"},
                                    {"actors": {"min": 1, "max": 4}, "accelerator_type": "H100"}])  # fmt: skip
def test_a_session_of_one_machine_gets_no_nodes_whatever_is_expected(fields: Any) -> None:
    """It would wait for them for ever."""
    job = RunConfig.from_mapping({"input": "i", "output": "o", "expect_autoscaling": True, **fields})
    fit_pools(job, LAPTOP)
    with pytest.raises(ResourceError, match=r"gets no nodes, .*: set RAY_ADDRESS|there is no GPU here"):
        fit_pools(job, LAPTOP, private=True)


def test_accelerators_that_no_node_has_are_named_beside_those_that_there_are() -> None:
    nodes = [{"CPU": 8.0, "GPU": 1.0, "accelerator_type:L4": 1.0}, {"CPU": 8.0}]
    with pytest.raises(ResourceError, match=r"No node has an accelerator 'H100'; there are: L4\."):
        fit_actors(config(accelerator_type="H100"), nodes)


def test_runs_beside_each_other_share_the_cpus_and_what_does_not_fit_together_is_refused() -> None:
    one, other = config(), config(actors=2)
    (alone,), (beside,) = (fit_pools(one, SERVER, beside=others).values() for others in ((), (other,)))
    assert alone.cpus >= beside.cpus > 0
    assert beside.threads < alone.threads
    cpus = sum(node["CPU"] for node in LAPTOP)
    each = config(cpus_per_actor=cpus / 2)
    assert fit_pools(each, LAPTOP)
    with pytest.raises(ResourceError):
        fit_pools(each, LAPTOP, beside=(each, config(cpus_per_actor=cpus / 4)))
