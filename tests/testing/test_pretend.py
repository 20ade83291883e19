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

# One process for all: torch is changed in it.
SCRIPT = """
import json, threading
import torch
from testing import pretend
from testing.pretend import LOG, MixError, WaitError, strict
pretend.install(devices=2)
from wedlm_core.devices import on_device
from wedlm_core.kernels.gpu.kv import twice

found = {}
def case(name, work, is_strict=False):
    try:
        if is_strict:
            with strict():
                value = work()
        else:
            value = work()
        found[name] = value if isinstance(value, (bool, int, str, list, type(None))) else "done"
    except (MixError, WaitError, RuntimeError, TypeError) as error:
        found[name] = type(error).__name__

a, b = torch.arange(8.0, device="cuda"), torch.ones(8, device="cuda:1")
host, pinned = torch.ones(8), torch.ones(8).pin_memory()
flags, places = a > 3, torch.tensor([1, 2], device="cuda")
for name, work in {
    "names itself": lambda: f"{a.device} {b.device} {a.is_cuda} {torch.ones(1).is_cuda}",
    "host beside device": lambda: a + host,
    "two devices": lambda: a + b,
    "a scalar beside device": lambda: (a + torch.tensor(1.0))[0].item() == 1.0,
    "cat of both": lambda: torch.cat([a, host]),
    "numpy": lambda: a.numpy(),
    "kernel on its device": lambda: twice(a).tolist(),
    "kernel beside its device": lambda: twice(b),
    "kernel of a host tensor": lambda: twice(host),
}.items():
    case(name, work)
with on_device(b.device):
    case("kernel under a guard", lambda: twice(b).tolist())
case("the guard ends", lambda: torch.cuda.current_device())
threads = []
def elsewhere():
    torch.cuda.set_device(1)
    threads.append(torch.empty(1, device="cuda").device.index)
thread = threading.Thread(target=elsewhere); thread.start(); thread.join()
case("threads have devices of their own", lambda: [threads[0], torch.empty(1, device="cuda").device.index])
case("no such device", lambda: torch.cuda.set_device(2))
for name, work in {
    "item": lambda: a.sum().item(), "truth": lambda: bool(a[0] == 0), "list": lambda: a.tolist(),
    "to host": lambda: a.cpu(),
    "flags": lambda: a[flags], "nonzero": lambda: torch.nonzero(flags), "equal": lambda: torch.equal(a, a),
    "set by flags": lambda: a.index_put((flags,), a[0]), "host index": lambda: a[torch.tensor([1])],
    "counted repeats": lambda: a.repeat_interleave(places[:1].expand(8)), "to device": lambda: host.to("cuda"),
    "pageable": lambda: host.to("cuda", non_blocking=True), "made of numbers": lambda: torch.tensor([1], device="cuda"),
    "synchronize": lambda: torch.cuda.synchronize(), "stream": lambda: torch.cuda.current_stream().synchronize(),
    "where of a host value": lambda: torch.where(flags, a, torch.tensor(0.0)),
    # These do not wait:
    "pinned": lambda: pinned.to("cuda", non_blocking=True), "where": lambda: torch.where(flags, a, 0),
    "index": lambda: a[places], "arithmetic": lambda: (a + 1) * 2, "event": lambda: torch.cuda.Event().synchronize(),
    "masked": lambda: a.masked_fill(flags, 0), "set": lambda: a.index_fill(0, places, 3),
}.items():
    case("strict " + name, work, is_strict=True)

def late():
    buffer = torch.empty(8, pin_memory=True)
    buffer.copy_(a, non_blocking=True)
    early = buffer.clone()
    event = torch.cuda.Event(); event.record(); event.synchronize()
    return [bool((early == torch.arange(8.0)).all()), bool((buffer == torch.arange(8.0)).all())]
case("a copy to the host is there when it was waited for", late)

def graph_of(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out
static = torch.zeros(4, device="cuda")
kept = torch.zeros(4, device="cuda")
def recorded():
    doubled_ = twice(static)
    kept.copy_(doubled_ + 1)
    return kept * 10
graph, out = graph_of(recorded)
before = kept.tolist()
values = []
for value in (1.0, 2.0):
    static.fill_(value)
    graph.replay()
    values.append(out.tolist()[0])
case("a capture runs nothing, a replay follows its inputs", lambda: [before[0], *values])
case("a capture that asks", lambda: graph_of(lambda: static.sum().item()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_tensors_say_where_they_are_and_hold_what_they_should(found: dict[str, Any]) -> None:
    assert found["names itself"] == "cuda:0 cuda:1 True False"
    assert found["a scalar beside device"] is True
    assert found["numpy"] in ("TypeError", "RuntimeError")
    assert found["kernel on its device"] == [2.0 * i for i in range(8)]
    assert found["kernel under a guard"] == [2.0] * 8


@pytest.mark.parametrize("mix", ["host beside device", "two devices", "cat of both", "kernel of a host tensor"])
def test_mixes_are_refused(found: dict[str, Any], mix: str) -> None:
    assert found[mix] == "MixError"


def test_a_kernel_runs_on_the_threads_current_device_only(found: dict[str, Any]) -> None:
    assert found["kernel beside its device"] == "MixError"
    assert found["the guard ends"] == 0
    assert found["threads have devices of their own"] == [1, 0]
    assert found["no such device"] == "RuntimeError"


WAITS = ("item", "truth", "list", "to host", "flags", "nonzero", "equal", "set by flags", "host index",
         "counted repeats", "to device", "pageable", "made of numbers", "synchronize", "stream",
         "where of a host value")  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_an_error_under_strict(found: dict[str, Any], name: str) -> None:
    assert found[f"strict {name}"] == "WaitError"


@pytest.mark.parametrize("name", ["pinned", "where", "index", "arithmetic", "event", "masked", "set"])
def test_what_does_not_wait_passes_under_strict(found: dict[str, Any], name: str) -> None:
    assert found[f"strict {name}"] in ("done", None)


def test_copies_and_graphs_behave_as_on_a_device(found: dict[str, Any]) -> None:
    assert found["a copy to the host is there when it was waited for"] == [False, True]
    assert found["a capture runs nothing, a replay follows its inputs"] == [0.0, 30.0, 50.0]
    assert found["a capture that asks"] == "WaitError"
