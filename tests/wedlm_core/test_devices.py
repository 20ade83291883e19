"""Which device a model is put on: names that mean nothing are refused in one line, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import torch

from testing.repository import ROOT
from wedlm_core import LLM
from wedlm_core.devices import numbered, on_device, on_own_device, step_clock
from wedlm_core.errors import ConfigError


@pytest.mark.parametrize("name", ["mps", "meta", "cuda:x", "cuda:-1", "gpu", ""])
def test_a_device_that_is_none_is_named_with_the_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^device=.*one of .*Use ") as caught:
        LLM("no/such/model", device=name)
    assert "\n" not in str(caught.value)


def test_a_cpu_has_no_current_device_to_set() -> None:
    class Owner:
        device = torch.device("cpu")

        @on_own_device
        def shout(self, text: str, *, times: int = 1) -> str:
            """Say it loudly."""
            return text.upper() * times

    with on_device(torch.device("cpu")):
        assert Owner().shout("a", times=2) == "AA"
    assert Owner.shout.__doc__ == "Say it loudly."
    assert numbered(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="the pretend device needs a Linux machine")
def test_cuda_is_numbered_for_good_and_a_number_too_high_is_refused() -> None:
    code = """
import torch
from testing import pretend
pretend.install(devices=2)
from wedlm_core.devices import numbered, on_device
from wedlm_core.errors import ConfigError
with on_device(torch.device("cuda:1")):
    print(numbered(torch.device("cuda")), torch.cuda.current_device())
print(numbered(torch.device("cuda")), torch.cuda.current_device())
try:
    numbered(torch.device("cuda:2"))
except ConfigError as error:
    print(error)
"""
    command = ["env", "TRITON_INTERPRET=1", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, refused = done.stdout.splitlines()
    assert (first, second) == ("cuda:1 1", "cuda:0 0")
    assert refused.startswith("device='cuda:2': this process sees 2 CUDA devices")


def test_on_one_cpu_thread_waiting_costs_nothing_and_work_costs_its_time() -> None:
    clock = step_clock(torch.device("cpu"))
    begin = clock()
    threading.Event().wait(0.05)
    waited = clock()
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass
    assert waited - begin < 0.02
    assert clock() > waited


def test_what_other_threads_or_a_device_do_is_seen_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert step_clock(torch.device("cpu")) is time.perf_counter
