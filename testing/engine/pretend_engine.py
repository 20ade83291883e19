"""Compare the engine on pretend CUDA devices with the engine on CPU; ``test_engine_pretend_device.py`` runs it.

    TRITON_INTERPRET=1 python -m testing.engine.pretend_engine FOLDER SCENARIO ...

Prints one JSON object: for each scenario a :class:`Found`, or its error.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from testing import pretend
from testing.engine.engines import COST, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting import measure
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.forward import step_graphs
from wedlm_core.engine.forward.cuda_graphs import DecoderGraphs
from wedlm_core.engine.forward.step_graphs import AllowedBuffers, StepGraphs
from wedlm_core.llm import LLM
from wedlm_core.model.weights import load_model
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

# Batch-invariant attention and a fixed step cost, so that engines differ only by a scenario's variable.
CONFIG = EngineConfig(
    max_num_seqs=8, max_window=3, max_batch_rows=48, max_model_len=64, num_pages=120, page_size=4, attention="triton",
    batch_invariant=True, step_cost=COST, graph_rows=16,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a scenario.

    Attributes:
        tokens, expected: token ids of each request, on the pretend device and on the CPU.
        finish, expected_finish: finish reasons of each request.
        preemptions, cached: preempted sequences, and prompt tokens found in the prefix cache.
        captured, replays: CUDA graphs of the decoder captured, and graphs replayed.
        recorded: graphs of the work around it that were captured.
        event_waits, steps: waits for a forward's results, and engine steps.
        used: calls that concern the current device, counted per device.
        recompiled: arguments whose values alone made Triton compile a kernel again, by the kernel's name.
    """

    tokens: list[list[int]]
    expected: list[list[int]]
    finish: list[str]
    expected_finish: list[str]
    preemptions: int = 0
    cached: int = 0
    captured: int = 0
    replays: int = 0
    recorded: int = 0
    event_waits: int = 0
    steps: int = 0
    used: dict[str, int]
    recompiled: dict[str, list[str]]


def mixed() -> list[Request]:
    """All strategies in one batch, greedy and sampled, with stops; some prompts share a page."""
    base = SamplingParams(max_tokens=5, window_size=3, ignore_eos=True, entropy_threshold=2.0)
    chosen = [
        base,
        replace(base, temperature=0.8, repetition_penalty=1.4, presence_penalty=0.5, bad_words=("e", "ab")),
        replace(base, temperature=0.9, top_k=12, top_p=0.8, min_p=0.01),
        replace(base, strategy="autoregressive", stop_token_ids=tuple(range(150, 300)), min_tokens=2, logprobs=3),
        replace(base, strategy="reference", logit_bias={30: 4.0, 31: -9.0}),
        replace(base, strategy="streaming", temperature=0.7, min_tokens=3),
        replace(base, strategy="blockwise", stop=("e", "\ufffd")),
    ]
    prompts = [[7, 30, 41, 52, 9 + i] if i % 2 else [(11 * i + 5 * j) % 300 for j in range(1 + i)] for i in range(7)]
    return requests_of(prompts, chosen)


@cache
def model(folder: Path, device: str) -> Any:
    """The folder's decoder in float32."""
    return load_model(folder, device=device, dtype=torch.float32)


def both(
    folder: Path, requests: Sequence[Request], *, device: str = "cuda", at_once: int | None = None, **settings: Any
) -> Found:
    """Run the requests on a pretend device and on the CPU, and compare."""
    tokenizer, config = Tokenizer.load(folder), replace(CONFIG, **settings)
    plain = replace(config, attention="auto", overlap="auto", cuda_graphs="auto", step_cost=COST)
    expected = run(Engine(model(folder, "cpu"), tokenizer, plain), requests, at_once)
    weights = model(folder, device)
    pretend.LOG.clear()
    engine = Engine(weights, tokenizer, config)
    pretend.LOG.launches.clear()  # those of a start may be of other sizes than a job's
    return found_of(engine, run(engine, requests, at_once), expected)


def _tokens_of(generation: Generation) -> list[int]:
    """Its tokens, and after them the most likely ones at each place."""
    return [*generation.token_ids, *(token for place in generation.top_logprobs or () for token, _ in place)]


def found_of(engine: Engine, done: list[Generation], expected: list[Generation]) -> Found:
    """Collect the result of a scenario."""
    graphs = getattr(engine._runner.launch, "graphs", None)
    return Found(
        tokens=[_tokens_of(g) for g in done],
        expected=[_tokens_of(g) for g in expected],
        finish=[str(g.finish_reason) for g in done],
        expected_finish=[str(g.finish_reason) for g in expected],
        preemptions=sum(g.stats.preemptions for g in done),
        cached=sum(g.stats.cached_prompt_tokens for g in done),
        captured=graphs.captured if graphs else 0,
        replays=pretend.LOG.replays,
        recorded=steps.recorded if (steps := getattr(engine._runner.launch, "steps", None)) else 0,
        event_waits=pretend.LOG.event_waits,
        used={str(device): count for device, count in pretend.LOG.used.items()},
        recompiled=recompiled(),
    )


def recompiled() -> dict[str, list[str]]:
    """See :class:`Found`; of all launches in the log."""
    kinds: dict[tuple[str, object], set[tuple[tuple[str, str], ...]]] = {}
    for launch in pretend.LOG.launches:
        kinds.setdefault((launch.name, launch.made.constants), set()).add(launch.made.facts)
    found: dict[str, set[str]] = {}
    for (name, _), variants in kinds.items():
        same = set.intersection(*map(set, variants))
        if len(variants) > 1:
            found.setdefault(name, set()).update(argument for one in variants for argument, _ in {*one} - same)
    return {name: sorted(arguments) for name, arguments in found.items()}


def steady(folder: Path, params: Sequence[SamplingParams], **settings: Any) -> Found:
    """Admission, prefill and decoding; any wait for the device is an error, except for a forward's results."""
    tokenizer, config = Tokenizer.load(folder), replace(CONFIG, **settings)
    engine = Engine(model(folder, "cuda"), tokenizer, config)
    requests = requests_of([[5 + i, 60, 71] for i in range(len(params))], params)
    plain = replace(config, attention="auto", overlap="auto", cuda_graphs="auto")
    expected = run(Engine(model(folder, "cpu"), tokenizer, plain), requests)
    graphs = getattr(engine._runner.launch, "graphs", None)
    if graphs is not None:
        graphs._book._seconds = 0.0  # a capture may wait for the device
    done: dict[str, Generation] = {}
    steps = 0
    with pretend.strict():
        for request in requests:
            engine.add(request)
        while engine.has_work():
            done.update((g.request_id, g) for g in engine.step())
            steps += 1
        return replace(found_of(engine, [done[r.request_id] for r in requests], expected), steps=steps)


def steady_mixed(folder: Path) -> Found:
    """All strategies and all sampling filters in one batch, without waits."""
    params = [r.params for r in mixed()]
    return steady(folder, [replace(p, stop_token_ids=(), stop=(), max_tokens=6) for p in params])


def steady_auto(folder: Path) -> Found:
    """Automatic windows, without CUDA graphs, without waits."""
    greedy = SamplingParams(max_tokens=6, ignore_eos=True)
    return steady(folder, [greedy, replace(greedy, temperature=0.7)], cuda_graphs=False, max_num_seqs=2)


def tight(folder: Path) -> Found:
    """A small pool, so that the engine preempts, and chunked prefill."""
    base = SamplingParams(max_tokens=10, window_size=2, ignore_eos=True)
    prompts = [[(9 * i + 5 * j) % 300 for j in range(7)] for i in range(3)]
    return both(
        folder, requests_of(prompts, base), num_pages=9, prefill_chunk=3, max_window=2, max_num_seqs=3, graph_rows=8
    )


def one_slot_elsewhere(folder: Path) -> Found:
    """The second device, driven by a thread that never set a device; measured step cost; one sequence at a time."""
    measure.CONSTANTS = replace(CONSTANTS, measured_seconds=(0.05, 0.05))
    config = replace(CONFIG, max_num_seqs=1, step_cost=None, graph_rows=8)
    requests = requests_of([[7, 8, 9], [20]], SamplingParams(max_tokens=5, ignore_eos=True))
    plain = replace(config, attention="auto", step_cost=COST)
    expected = run(Engine(model(folder, "cpu"), Tokenizer.load(folder), plain), requests)
    pretend.LOG.clear()
    llm = LLM(str(folder), config=config, device="cuda:1", dtype="float32")
    pretend.LOG.launches.clear()
    done: list[Generation] = []
    thread = threading.Thread(target=lambda: done.extend(run(llm.engine, requests)))
    thread.start()
    thread.join()
    return found_of(llm.engine, done, expected)


def defaults(folder: Path) -> Found:
    """Default settings: bfloat16, ``attention="auto"``, a pool sized by memory, kernels of common choices compiled."""
    measure.CONSTANTS = replace(CONSTANTS, measured_seconds=(0.05, 0.05))
    sizes = EngineConfig(max_num_seqs=2, max_window=3, max_batch_rows=16, max_model_len=32, page_size=16, graph_rows=8)
    pretend.LOG.clear()
    llm = LLM(str(folder), config=sizes, device="cuda:1")
    assert llm.engine._runner.backend.name == "triton"
    assert llm.engine._runner.pool.dtype == torch.bfloat16
    compiled = {(launch.name, launch.made) for launch in pretend.LOG.launches}
    base = SamplingParams(max_tokens=5, ignore_eos=True)
    chosen = [
        base, replace(base, temperature=0.8), replace(base, temperature=0.8, top_k=5, top_p=0.9),
        replace(base, logprobs=2),
        replace(base, structured_outputs=StructuredOutputs(regex="[a-z]{9}"), ignore_eos=False),
    ]  # fmt: skip
    requests = requests_of([[7, 8, 9], [20], [41, 42], [50], [51]], chosen)
    pretend.LOG.clear()
    done = run(llm.engine, requests)
    late = {launch.name for launch in pretend.LOG.launches if (launch.name, launch.made) not in compiled}
    assert not late & {"reduce_tiles", "combine_tiles"}, late
    return found_of(llm.engine, done, done)  # bfloat16 decides near-ties differently: no comparison with the CPU


def scores(folder: Path) -> Found:
    """Given tokens are scored between an engine's steps; contexts are shared, and longer than the row budget."""
    context = [(7 * i) % 300 for i in range(50)]
    sequences = [(*context, 30 + i, 41) for i in range(4)] + [(5, 60, 71)]
    engines = [Engine(model(folder, "cpu"), Tokenizer.load(folder), replace(CONFIG, attention="auto", overlap="auto"))]
    pretend.LOG.clear()
    engines.append(Engine(model(folder, "cuda"), Tokenizer.load(folder), CONFIG))
    pretend.LOG.launches.clear()
    found = []
    for engine in engines:
        engine.add(requests_of([[7, 8, 9]], SamplingParams(max_tokens=4, ignore_eos=True))[0])
        engine.step()
        scorer, done = engine.scorer(), []
        for key, tokens in enumerate(sequences):
            scorer.add(key, tokens, 2)
        while scorer.has_work():
            done += scorer.step() or []
            engine.step()
        found.append(sorted(done, key=lambda one: one.key))
    plain, ours = found
    apart = max(abs(a - b) for one, other in zip(plain, ours, strict=True)
                for a, b in zip(one.logprobs, other.logprobs, strict=True))  # fmt: skip
    assert apart < 1e-3, apart
    result = found_of(engines[1], [], [])
    given = [[[*map(int, one.greedy), one.cached_tokens] for one in done] for done in (ours, plain)]
    return replace(result, tokens=given[0], expected=given[1], cached=sum(one.cached_tokens for one in ours))


def traced(folder: Path) -> Found:
    """An engine whose forwards overlap lets another one on the same weights trace, and goes on as before."""
    requests, tokenizer = mixed()[::2], Tokenizer.load(folder)
    expected = run(Engine(model(folder, "cpu"), tokenizer, replace(CONFIG, attention="auto", overlap="auto")), requests)
    engine = Engine(model(folder, "cuda"), tokenizer, CONFIG)
    with engine.traced(len(requests), 16) as tracing:
        assert tracing is not engine
        done = run(tracing, requests)
    for one in done:
        assert sum(len(record["committed"]) for record in one.trace or ()) == len(one.token_ids), one
    again = run(engine, requests[:1])
    assert again[0].trace is None
    return found_of(engine, [*done, *again], [*expected, expected[0]])


def around(folder: Path) -> Found:
    """Requests that need no more than a temperature: the work around their forwards is captured, of many kinds."""
    base = SamplingParams(max_tokens=14, window_size=3, ignore_eos=True, logprobs=True)
    chosen = [  # greedy ones come first: their captures would do for no other temperature
        base,
        replace(base, max_tokens=25),
        replace(base, strategy="autoregressive", stop_token_ids=tuple(range(150, 300))),
        replace(base, window_size=1, max_tokens=9),
        replace(base, temperature=0.8),
        replace(base, temperature=0.8, max_tokens=25),
        replace(base, strategy="autoregressive", temperature=0.9, max_tokens=20),
        replace(base, window_size=2, stop=("e",)),
        replace(base, strategy="streaming", entropy_threshold=2.0, logprobs=False),
        replace(base, temperature=3.0, top_k=3, max_tokens=25),
        replace(base, temperature=3.0, top_k=4, top_p=0.9, max_tokens=30),
    ]
    prompts = [[(11 * i + 5 * j) % 300 for j in range(1 + i)] for i in range(len(chosen))]
    return both(folder, requests_of(prompts, chosen), at_once=2, max_num_seqs=2)


def grammars(folder: Path) -> Found:
    """Sequences with a grammar beside others: masks go to the device while the model runs, into captured work."""
    base = SamplingParams(max_tokens=24, window_size=3)
    digits = StructuredOutputs(regex="the key is [0-9]{3}, the end is [a-z]{2} there")
    chosen = [
        replace(base, structured_outputs=digits),
        replace(base, structured_outputs=StructuredOutputs(json={"enum": ["red", "green", "blue", "grey"]})),
        replace(base, ignore_eos=True, max_tokens=12),
        replace(base, structured_outputs=digits, temperature=0.9, seed=5),
        replace(base, structured_outputs=StructuredOutputs(regex="[a-z]{4} [0-9]{2}"), strategy="autoregressive"),
        replace(base, structured_outputs=digits, temperature=0.9, top_k=20, seed=6),
    ]
    prompts = [[(11 * i + 5 * j) % 300 for j in range(1 + i)] for i in range(len(chosen))]
    return both(folder, requests_of(prompts, chosen), at_once=2, max_num_seqs=2)


def buffers_refuse(folder: Path) -> Found:
    """Every second time the allowed tokens do not fit into the memory of recorded work: that forward ends eagerly."""
    plain, turns = AllowedBuffers.take, itertools.count()
    with patch.object(AllowedBuffers, "take", lambda own, allowed: plain(own, allowed) if next(turns) % 2 else None):
        return grammars(folder)


def captures_fail(folder: Path, number: int) -> Found:
    """The recording of work around a forward fails after that was done, once: all else runs eagerly."""
    plain, turns = StepGraphs.record, itertools.count(1)

    def record(self: StepGraphs, work: Callable[[], Any]) -> Any:
        def broken() -> None:
            work()
            raise RuntimeError("as when a capture is invalidated at its end")

        return plain(self, broken if next(turns) == number else work)

    logging.getLogger(step_graphs.__name__).setLevel(logging.ERROR)
    with patch.object(StepGraphs, "record", record), patch.object(step_graphs, "_USES", 1):
        found = around(folder)
    assert found.recorded == number - 1
    return found


def draining(folder: Path) -> Found:
    """A job's sequences end one after the other: kinds of forwards are few, and no kernel is compiled for one of them.

    Logits come in two chunks; the second begins where rows may not be aligned.
    """
    base = SamplingParams(ignore_eos=True)
    chosen = [replace(base, strategy="autoregressive", max_tokens=2 + 2 * i, temperature=0.8) for i in range(7)]
    prompts = [[(11 * i + 5 * j) % 300 for j in range(1 + i % 3)] for i in range(len(chosen))]
    with patch.object(step_graphs, "_USES", 1):
        return both(folder, requests_of(prompts, chosen), logits_chunk_rows=9)


def adjusted(folder: Path) -> Found:
    """Captured work reads lists at their present places: those of later sequences are more, longer and elsewhere."""
    base = SamplingParams(max_tokens=7, window_size=3, ignore_eos=True)
    grown: list[dict[str, Any]] = [
        {"logit_bias": {30 + i: 4.0 for i in range(count)}, "bad_words": ("e", "ab", "7, 8")[:words],
         "suppress_tokens": tuple(range(200, 200 + count))}
        for count, words in ((1, 1), (2, 2), (40, 3))
    ]  # fmt: skip
    chosen = [replace(base, repetition_penalty=1.3, **lists) for lists in grown]
    chosen.append(replace(chosen[1], temperature=0.9, top_k=20, top_p=0.9, frequency_penalty=0.4))
    requests = requests_of([[5 + i, 60, 71] for i in range(len(chosen))], chosen)
    with patch.object(step_graphs, "_USES", 1):
        return both(folder, requests, at_once=1, max_num_seqs=1)


def reported(folder: Path) -> Found:
    """Captured steps report the most likely tokens, of sequences that report as many or fewer or none."""
    base = SamplingParams(max_tokens=8, window_size=2, ignore_eos=True, entropy_threshold=2.0)
    chosen = [replace(base, logprobs=most) for most in (3, 20, False)] + [replace(base, strategy="streaming")]
    with patch.object(step_graphs, "_USES", 1):
        return both(folder, requests_of([[5 + i, 60, 71] for i in range(len(chosen))], chosen), at_once=2)


SCENARIOS: dict[str, Callable[[Path], Found]] = {
    "around": around,
    "grammars": grammars,
    "buffers_refuse": buffers_refuse,
    "first_capture_fails": lambda folder: captures_fail(folder, 5),
    "second_capture_fails": lambda folder: captures_fail(folder, 6),
    "draining": draining,
    "adjusted": adjusted,
    "reported": reported,
    "graphs": lambda folder: both(folder, mixed(), at_once=3),
    "eager": lambda folder: both(folder, mixed(), cuda_graphs=False, max_num_seqs=3, batch_invariant=False),
    "plain": lambda folder: both(folder, mixed()[::2], overlap=False),
    "sdpa": lambda folder: both(folder, mixed()[1::2], attention="sdpa", batch_invariant=False),
    "eight_bits": lambda folder: both(folder, mixed()[:2], kv_cache_dtype="fp8_e4m3", batch_invariant=False),
    "tight": tight,
    "scores": scores,
    "traced": traced,
    "steady_mixed": steady_mixed,
    "steady_auto": steady_auto,
    "one_slot_elsewhere": one_slot_elsewhere,
    "defaults": defaults,
}


def main() -> None:
    """Run the scenarios and print the results as JSON."""
    torch.set_num_threads(1)
    pretend.install(devices=2)
    folder, found = Path(sys.argv[1]), {}
    stale: list[object] = []
    plain = DecoderGraphs._capture

    def capture(self: DecoderGraphs, key: Any) -> None:
        plain(self, key)
        if self._stale:
            stale.append(key)

    DecoderGraphs._capture = capture  # type: ignore[method-assign]
    for name in sys.argv[2:]:
        begin = time.perf_counter()
        try:
            found[name] = asdict(SCENARIOS[name](folder))
            if stale:
                found[name] = {"error": f"a capture failed: {stale}"}
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        print(name, round(time.perf_counter() - begin, 1), file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
