"""Threads that run a forward together: running threads take part, and no thread waits for one whose core is taken."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.engine.engines import requests_of, run
from testing.engine.numbers import used_here
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.kernels.cpu.panel_products import numeric_kind
from wedlm_core.model import team
from wedlm_core.model.panels import PanelWeight, pack
from wedlm_core.model.team import Attendance, Team
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams

WORK, USUAL = 1 << 20, 1e-3


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(team, "_TEAM_BYTES", 1)
    yield
    torch.set_num_threads(before)


def a_product(seed: int = 0) -> tuple[PanelWeight, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return pack(torch.randn(300, 70, generator=generator), "float32"), torch.randn(13, 70, generator=generator)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in an array of one."""
    found = [100.0]
    monkeypatch.setattr(team.time, "perf_counter", lambda: found[0])
    return found


@pytest.mark.parametrize(("asked", "there", "later"), [(2, 2, 1), (16, 16, 8), (2, 1, 1), (16, 15, 15)])
def test_after_a_forward_that_was_disturbed_fewer_are_asked_for_and_twice_as_long_each_time(
    asked: int, there: int, later: int, now: list[float]
) -> None:
    attendance, is_away = Attendance(), there == asked

    def calm() -> None:
        for _ in range(64):
            assert attendance.members(asked) == asked
            attendance.record(WORK, USUAL, asked=asked, there=asked, waited=False)

    def disturb() -> float:
        """Seconds with fewer threads asked for."""
        attendance.record(WORK, 5e-3 if is_away else USUAL, asked=asked, there=there, waited=is_away)
        begin = now[0]
        while (found := attendance.members(asked)) != asked:
            assert found == later
            assert attendance.members(1) == 1
            now[0] += 1e-4
        return now[0] - begin

    calm()
    for seconds in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2):
        assert disturb() == pytest.approx(seconds, rel=0.05)
    calm()
    assert disturb() == pytest.approx(0.005, rel=0.05), "short again, after a while without"


def test_what_takes_long_without_long_waits_is_not_disturbed() -> None:
    attendance = Attendance()
    for turn in range(400):
        attendance.record(WORK, 10e-3 * (1 + turn / 400), asked=2, there=2, waited=False)
        attendance.record(WORK << 5, 0.3 * (1 + turn % 3), asked=2, there=2, waited=True)  # a slice is no part of that
        attendance.record(WORK << 2, 2e-3 * (1 + turn % 5), asked=2, there=2, waited=False)  # more to attend to
        assert attendance.members(2) == 2


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_outputs_do_not_depend_on_who_is_there(
    weights: Any, qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks, windows and heads alone, in forwards of one, two or three threads as chance has it."""
    config, rng, found = EngineConfig(weight_dtype=weights, page_size=8, prefill_chunk=9), random.Random(1), []
    params = SamplingParams(max_tokens=24, temperature=0.7, ignore_eos=True, logprobs=True)
    mixed = [replace(params, strategy=one) for one in ("verified", "autoregressive", "verified")]
    prompts = [[5, 6, 7] * 9, [8], [9, 10, 11, 12] * 4]
    monkeypatch.setattr(team, "_LOOKS", 1 << 22)
    for members in (lambda _, wanted: 1, *[lambda _, wanted: rng.randint(1, wanted)] * 3):
        monkeypatch.setattr(Attendance, "members", members)
        engine = Engine(load_model(qwen3_folder), Tokenizer.load(qwen3_folder), config)
        done = run(engine, requests_of(prompts, mixed))
        found.append([(one.token_ids, one.logprobs) for one in done])
    assert all(one == found[0] for one in found)


def test_a_team_multiplies_weights_of_any_numbers_in_turns() -> None:
    generator = torch.Generator().manual_seed(5)
    x_RI, whole_OI = torch.randn(13, 70, generator=generator), torch.randint(-127, 128, (300, 70), generator=generator)
    weights = []
    for numbers in used_here():
        kind = numeric_kind(numbers)
        dtype = torch.int8 if kind in ("int8", "int16") else getattr(torch, kind)
        scale_O = torch.full((300,), 0.01) if dtype == torch.int8 else None
        weights.append(pack(whole_OI.to(dtype), numbers, scale_O=scale_O))
    alone, shared = [Team().product(weight, x_RI) for weight in weights], Team()
    for weight, expected in [*zip(weights, alone, strict=True)] * 2:
        assert torch.equal(shared.product(weight, x_RI), expected)


def test_helpers_that_sleep_are_woken() -> None:
    weight, x_RI = a_product()
    expected = Team().product(weight, x_RI)
    found, lead = [], team.lead
    attendance, looks = Attendance(), 1 << 24

    def counted(*given: object) -> int:
        found.append(lead(*given[:-1], looks))
        return found[-1]

    pool = team._Pool()
    pool._attendance = attendance
    team_of_pool, before = Team(), team._POOL
    try:
        team._POOL, team.lead = pool, counted
        for pause in (0.0, 0.05, 0.05):
            time.sleep(pause)
            attendance._until = 0.0  # whoever has the cores
            assert torch.equal(team_of_pool.product(weight, x_RI), expected)
    finally:
        team._POOL, team.lead = before, lead
        pool.end()
    assert found == [3, 3, 3]
    assert not pool._threads


def test_whoever_finds_the_helpers_taken_goes_alone() -> None:
    weights = [a_product(seed) for seed in range(3)]
    expected, wrong = [Team().product(*one) for one in weights], list[int]()

    def many(number: int) -> None:
        own = Team()
        for _ in range(200):
            if not torch.equal(own.product(*weights[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_process_has_helpers_of_its_own() -> None:
    weight, x_RI = a_product()
    expected = Team().product(weight, x_RI)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(Team().product(weight, x_RI), expected) and team._POOL._threads else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_ends_though_helpers_look_at_the_gate() -> None:
    program = (
        "import torch; torch.set_num_threads(2)\n"
        "from wedlm_core.model import team\n"
        "from wedlm_core.model.panels import pack\n"
        "team._TEAM_BYTES = 1\n"
        "print(team.Team().product(pack(torch.ones(64, 64), 'float32'), torch.ones(4, 64)).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout) == 64 * 64 * 4
    assert done.stderr == ""


def test_the_state_of_a_team_is_left_as_it_was_found() -> None:
    own, (weight, x_RI) = Team(), a_product()
    for _ in range(50):
        own.product(weight, x_RI)
        assert not own.state[[0, 32]].any(), "no one counted as there, no piece as taken"
    assert np.all(own.state >= 0)
