"""``ray up``, SkyPilot and Airflow: each file is valid for its tool, or as its documentation says."""

from __future__ import annotations

import ast
import copy
import re
import shlex
from typing import Any

import pytest

from testing.infra import INFRA, load

AWS, SKY = INFRA / "ray-up" / "aws.yaml", INFRA / "skypilot" / "generate.yaml"
DAG = INFRA / "airflow" / "wedlm_generate.py"


# ---- ray up


def ray_accepts(raw: dict[str, Any]) -> dict[str, Any]:
    """The configuration as ``ray up`` completes it, after its own check."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    found: dict[str, Any] = prepare_config(copy.deepcopy(raw))
    validate_config(found)
    return found


def test_ray_up_takes_the_file_and_refuses_an_unknown_field() -> None:
    import jsonschema

    raw = load(AWS)
    assert ray_accepts(raw)["available_node_types"]["spot-gpu"]["max_workers"] == raw["max_workers"]
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout"):
        ray_accepts({**raw, "idle_timeout": 5})


def ec2_faults(node: dict[str, Any]) -> str:
    """Settings of a node that the API of EC2 would refuse; empty if nothing."""
    import botocore.session
    import botocore.validate

    model = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    checked = botocore.validate.ParamValidator().validate({**node, "MinCount": 1, "MaxCount": 1}, model)
    types = model.members["InstanceType"].enum
    wrong = [] if node["InstanceType"] in types else [f"InstanceType {node['InstanceType']}"]
    market = node.get("InstanceMarketOptions", {}).get("MarketType", "spot")
    wrong += [] if market in model.members["InstanceMarketOptions"].members["MarketType"].enum else [market]
    return " ".join([*wrong, checked.generate_report()]).strip()


def test_nodes_are_what_ec2_can_start_the_head_on_demand_and_workers_on_spot() -> None:
    raw = load(AWS)
    nodes = {name: kind["node_config"] for name, kind in raw["available_node_types"].items()}
    assert {name: ec2_faults(node) for name, node in nodes.items()} == dict.fromkeys(nodes, "")
    assert "Unknown parameter" in ec2_faults({**nodes["head"], "InstanceMarket": {}})
    assert ec2_faults({**nodes["head"], "InstanceType": "g9.huge"}) == "InstanceType g9.huge"
    head = raw["head_node_type"]
    assert raw["available_node_types"][head]["resources"] == {"CPU": 0, "GPU": 0}
    for name, node in nodes.items():
        assert (node.get("InstanceMarketOptions", {}).get("MarketType") == "spot") == (name != head)
        assert raw["available_node_types"][name].get("min_workers", 0) == 0


def test_ray_is_started_with_options_that_it_has() -> None:
    import ray.scripts.scripts as scripts

    known = {option for parameter in scripts.start.params for option in parameter.opts}
    raw = load(AWS)
    for command in (*raw["head_start_ray_commands"], *raw["worker_start_ray_commands"]):
        if "ray start" in command:
            words = [word.partition("=")[0] for word in shlex.split(command.split("ray start")[1])]
            assert set(words) <= known
            assert "--metrics-export-port" in words


# ---- SkyPilot

SKY_TASK = {"name", "resources", "num_nodes", "workdir", "envs", "setup", "run"}
SKY_RESOURCES = {"accelerators", "use_spot", "disk_size", "job_recovery"}


def test_the_skypilot_task_has_fields_that_are_documented_and_variables_that_it_sets() -> None:
    raw = load(SKY)
    assert set(raw) <= SKY_TASK
    assert set(raw["resources"]) <= SKY_RESOURCES
    assert set(raw["resources"]["job_recovery"]) <= {"strategy", "max_restarts_on_errors"}
    assert raw["resources"]["use_spot"] is True
    shell = [word for word in shlex.split(raw["run"], comments=True) if word.startswith("$")]
    assert {word.removeprefix("$") for word in shell} == {*raw["envs"], "SKYPILOT_NUM_GPUS_PER_NODE"}


# ---- Airflow


def test_the_dag_calls_the_job_and_does_nothing_else() -> None:
    tree = ast.parse(DAG.read_text(encoding="utf-8"))
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert set(imported) == {
        "__future__", "datetime", "airflow.sdk", "airflow.providers.standard.operators.bash"
    }  # fmt: skip
    calls = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert sorted(calls) == ["BashOperator", "DAG", "datetime", "timedelta"]
    (operator,) = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "BashOperator"]
    command = ast.literal_eval(next(k.value for k in operator.keywords if k.arg == "bash_command"))
    before, after = command.split(" -- ")
    assert before.startswith('ray job submit --address "$JOB_')
    assert after.startswith('python -m jobs.generate --input "$JOB_INPUT"')
    env = ast.literal_eval(next(k.value for k in operator.keywords if k.arg == "env"))
    assert {f'"${name}"' for name in env} == set(re.findall(r'"\$\w+"', command)), (
        "all values are quoted, none inserted"
    )
    assert all(re.fullmatch(r"\{\{ var\.value\.wedlm_\w+ \}\}", value) for value in env.values())
    (dag,) = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "DAG"]
    limits = {k.arg: k.value.value for k in dag.keywords if isinstance(k.value, ast.Constant)}
    assert (limits["max_active_runs"], limits["catchup"]) == (1, False), "an output has one writer"
