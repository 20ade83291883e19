"""The pretend CUDA device refuses the same operations as a GPU; its graphs and copies behave as on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from testing.repository import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")

# Expressions on tensors of two devices and of the host, and their values or errors. One process evaluates all: torch is
# changed in it.
PLAIN = {
    "f'{a.device} {b.device} {a.is_cuda} {torch.ones(1).is_cuda}'": "cuda:0 cuda:1 True False",
    "(a + torch.tensor(1.0))[0].item() == 1.0": True,
    "a + host": "MixError",
    "a + b": "MixError",
    "torch.cat([a, host])": "MixError",
    "twice(a).tolist()": [2.0 * i for i in range(8)],
    "twice(b)": "MixError",
    "twice(host)": "MixError",
    "guarded()": [2.0] * 8,
    "torch.cuda.current_device()": 0,
    "[on_a_thread_of_its_own(), torch.empty(1, device='cuda').device.index]": [1, 0],
    "torch.cuda.set_device(2)": "RuntimeError",
    "late_copy()": [False, True],
    "replays()": [0.0, 30.0, 50.0],
    "captured(lambda: static.sum().item())": "WaitError",
}
WAITS = [
    "a.sum().item()", "bool(a[0] == 0)", "a.tolist()", "a.cpu()", "a[flags]", "torch.nonzero(flags)",
    "torch.equal(a, a)", "a.index_put((flags,), a[0])", "a[torch.tensor([1])]",
    "a.repeat_interleave(places[:1].expand(8))", "host.to('cuda')", "host.to('cuda', non_blocking=True)",
    "torch.tensor([1], device='cuda')", "torch.cuda.synchronize()", "torch.cuda.current_stream().synchronize()",
    "torch.where(flags, a, torch.tensor(0.0))",
]  # fmt: skip
GOES_ON = [
    "pinned.to('cuda', non_blocking=True)", "torch.where(flags, a, 0)", "a[places]", "(a + 1) * 2",
    "torch.cuda.Event().synchronize()", "a.masked_fill(flags, 0)", "a.index_fill(0, places, 3)",
]  # fmt: skip

SCRIPT = """
import json, sys, threading
from contextlib import nullcontext
import torch
from testing import pretend
from testing.pretend import MixError, WaitError, strict
pretend.install(devices=2)
from wedlm_core.devices import on_device
from wedlm_core.kernels.gpu.dependent_launch import twice

a, b = torch.arange(8.0, device="cuda"), torch.ones(8, device="cuda:1")
host, pinned = torch.ones(8), torch.ones(8).pin_memory()
flags, places = a > 3, torch.tensor([1, 2], device="cuda")
static, kept = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")

def guarded():
    with on_device(b.device):
        return twice(b).tolist()

def on_a_thread_of_its_own():
    found = []
    def elsewhere():
        torch.cuda.set_device(1)
        found.append(torch.empty(1, device="cuda").device.index)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    return found[0]

def late_copy():
    buffer = torch.empty(8, pin_memory=True)
    buffer.copy_(a, non_blocking=True)
    early = buffer.clone()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    return [bool((early == torch.arange(8.0)).all()), bool((buffer == torch.arange(8.0)).all())]

def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out

def replays():
    def recorded():
        kept.copy_(twice(static) + 1)
        return kept * 10
    graph, out = captured(recorded)
    values = [kept.tolist()[0]]
    for value in (1.0, 2.0):
        static.fill_(value)
        graph.replay()
        values.append(out.tolist()[0])
    return values

def outcome(expression, context):
    try:
        with context:
            value = eval(expression)
    except (MixError, WaitError, RuntimeError) as error:
        return type(error).__name__
    return value if isinstance(value, (bool, int, str, list)) else "done"

plain, strictly = json.loads(sys.argv[1])
print(json.dumps([{one: outcome(one, context()) for one in some}
                  for some, context in ((plain, nullcontext), (strictly, strict))]))
"""


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """The outcomes of expressions as they are, and of those under ``strict``."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([list(PLAIN), [*WAITS, *GOES_ON]])]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_mixes_are_refused_and_kernels_copies_and_graphs_behave_as_on_a_device(found: list[dict[str, Any]]) -> None:
    assert found[0] == PLAIN


def test_a_wait_is_an_error_under_strict_and_nothing_else_is(found: list[dict[str, Any]]) -> None:
    assert found[1] == dict.fromkeys(WAITS, "WaitError") | dict.fromkeys(GOES_ON, "done")
