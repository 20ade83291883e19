"""The CUDA path starts and gives the CPU engine's tokens, on devices that say ``cuda:N`` and execute on the host.

Every operation that would mix host and device tensors or two devices, every kernel launched on the wrong one, and every
capture that would fail is an error there; so is every wait, where a steady state is looked at (:mod:`testing.pretend`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from testing.engine.models import write_model
from testing.repository import ROOT

# Two processes at a time, of about the same length: torch is changed in them, and the machine may have two cores.
SHARES: tuple[tuple[str, ...], ...] = (
    (
        "graphs",
        "around",
        "plain",
        "one_slot_elsewhere",
        "steady_auto",
        "defaults",
        "scores",
        "buffers_refuse",
        "first_capture_fails",
        "draining",
    ),
    (
        "eager",
        "sdpa",
        "eight_bits",
        "tight",
        "traced",
        "steady_mixed",
        "grammars",
        "second_capture_fails",
        "adjusted",
        "reported",
    ),
)
NAMES = sorted({name for share in SHARES for name in share} - {"defaults"})

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux"),
    pytest.mark.slow,  # four minutes of two cores
    pytest.mark.timeout(600),  # the scenarios take about 200 s of processor time, and a machine may be busy
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of each scenario (:class:`testing.engine.pretend_engine.Found`)."""
    folder = write_model(
        tmp_path_factory.mktemp("models") / "pretend", qwen3=True, seed=3, sharpness=2.0, common=0.5, heads=2
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "WEDLM_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "testing.engine.pretend_engine", str(folder), *share],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for share in SHARES
    ]  # fmt: skip
    results: dict[str, Any] = {}
    for process in running:
        out, errors = process.communicate(timeout=580)
        assert process.returncode == 0, errors[-3000:]
        results.update(json.loads(out))
    return results


@pytest.mark.parametrize("name", NAMES)
def test_a_pretend_device_gives_the_tokens_of_the_cpu(found: dict[str, Any], name: str) -> None:
    one = found[name]
    assert "error" not in one, one["error"]
    assert one["tokens"] == one["expected"]
    assert one["finish"] == one["expected_finish"]


def test_a_steady_state_waits_for_nothing_but_one_outcome_a_step(found: dict[str, Any]) -> None:
    """Admission, chunks of prompts, all strategies and all stages of sampling; any other wait is an error there."""
    for name in ("steady_mixed", "steady_auto"):
        assert 1 < found[name]["event_waits"] <= found[name]["steps"], name
    assert found["steady_mixed"]["replays"] > 0


def test_no_kernel_is_compiled_again_for_the_values_of_its_arguments(found: dict[str, Any]) -> None:
    """As when a pointer is aligned in some forwards alone: such a compilation halts a job in its middle."""
    jobs = {
        name: one for name, one in found.items() if name != "traced"
    }  # which has a second engine, with another pool
    assert {name: one.get("recompiled") for name, one in jobs.items() if one.get("recompiled") != {}} == {}


def test_a_job_that_drains_records_the_work_of_few_kinds_of_forwards(found: dict[str, Any]) -> None:
    """With 7 sequences to 1 there are 4 sizes; were numbers of sequences not rounded, 16 parts would be recorded."""
    assert 0 < found["draining"]["recorded"] <= 12


def test_the_scenarios_do_what_they_are_named_after(found: dict[str, Any]) -> None:
    assert found["graphs"]["captured"] >= 5
    assert found["graphs"]["replays"] > 3
    assert found["around"]["recorded"] > 8
    assert found["around"]["replays"] > 60
    assert found["grammars"]["recorded"] >= 4
    assert found["adjusted"]["recorded"] >= 3
    assert found["adjusted"]["replays"] > 20
    assert found["reported"]["recorded"] >= 4
    assert found["reported"]["replays"] > 20
    assert found["eager"]["recorded"] == found["eager"]["captured"] == found["plain"]["captured"] == 0
    assert found["eager"]["cached"] > 0, "prefixes are shared"
    assert found["tight"]["preemptions"] > 0
    assert found["scores"]["cached"] > 0, "so are those of scored contexts"
    assert "stop" in found["graphs"]["finish"]


def test_a_device_is_the_current_one_of_every_thread_that_works_for_its_engine(found: dict[str, Any]) -> None:
    """``LLM(device="cuda:1")``, driven by another thread: launches, pinned memory, events, streams and graphs."""
    assert set(found["one_slot_elsewhere"]["used"]) == {"1"}
    assert found["one_slot_elsewhere"]["used"]["1"] > 50


def test_costs_are_measured_within_the_buffers_of_one_sequence(found: dict[str, Any]) -> None:
    """``max_num_seqs=1``, ``window_size="auto"``: the first default request of a small engine with graphs."""
    assert "error" not in found["one_slot_elsewhere"]
    assert found["one_slot_elsewhere"]["replays"] > 0


def test_the_defaults_start_in_bfloat16_with_our_kernels_and_graphs(found: dict[str, Any]) -> None:
    one = found["defaults"]
    assert "error" not in one, one["error"]
    assert [len(tokens) for tokens in one["tokens"]] == [5, 5, 5, 15, 5], "the fourth reports two tokens a place"
    assert one["captured"] >= 4
    assert one["replays"] > 0
    assert set(one["used"]) == {"1"}
