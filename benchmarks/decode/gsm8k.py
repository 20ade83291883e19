"""Section ``gsm8k``: real GSM8K questions, answers of the real lengths, random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import table
from benchmarks.decode.models import TEMPERATURES
from benchmarks.decode.passes import Pass, Workload, run_pass
from benchmarks.decode.section import Section, Settings
from benchmarks.decode.workloads import open_subject
from wedlm_core import LLM, SamplingParams, Strategy

__all__ = ["gsm8k"]

_CONCURRENCY = 32
_ROWS = 48
_LIMIT_SECONDS = 30.0
_TITLE = "A GSM8K-length workload"
_LOOSE_THRESHOLD = 3.0
_CONTENDERS: Mapping[str, Mapping[str, object]] = {
    "reference W=16, tau 0.4": {"strategy": Strategy.REFERENCE, "window_size": 16},
    f"reference W=16, tau {_LOOSE_THRESHOLD:g}": {
        "strategy": Strategy.REFERENCE, "window_size": 16, "entropy_threshold": _LOOSE_THRESHOLD,
    },
    "autoregressive": {"strategy": Strategy.AUTOREGRESSIVE},
    "auto (verified)": {"strategy": Strategy.VERIFIED, "window_size": "auto"},
}  # fmt: skip


def gsm8k(settings: Settings) -> Section:
    """Tokens per second of the published rule, ``autoregressive`` and ``auto``, in each regime of acceptance."""
    path = Path(settings.gsm8k)
    if not path.is_file():
        return Section(title=_TITLE, body=f"Skipped: no file {path.name} (give its path with --gsm8k).")
    rows: list[tuple[object, ...]] = []
    with open_subject("random-25m") as subject:
        count = 6 if settings.quick else _ROWS
        prompts, lengths = _lengths(subject.llm, path, count)
        subject.llm.engine.measure_step_cost()  # here, not in a timed pass
        for name, temperature in TEMPERATURES.items():
            params = [SamplingParams(max_tokens=n, temperature=temperature, ignore_eos=True) for n in lengths]
            work = Workload(prompts=prompts, params=params, concurrency=_CONCURRENCY)
            limit = 5.0 if settings.quick else _LIMIT_SECONDS
            found = {label: run_pass(subject.llm, work, how, limit) for label, how in _CONTENDERS.items()}
            base = found["autoregressive"].rate
            rows += [_row(name, label, one, base) for label, one in found.items()]
            for row in rows[-len(found) :]:
                print(*row, sep=" | ", flush=True)
    body = (
        f"{count} questions, {sum(map(len, prompts)) / count:.0f} tokens each under the shipped tokenizer on average, "
        f"{sum(lengths) / count:.0f} tokens to generate (the length of the file's answer, end-of-sequence ignored), "
        f"{_CONCURRENCY} sequences at once, random weights of 25M parameters: lengths are real, text is not. Single "
        f"passes, stopped after {_LIMIT_SECONDS:.0f} s where marked (rate until then). Random weights have about 2.4 "
        f"nats, so the published rule at tau 0.4 fills one slot a forward; tau {_LOOSE_THRESHOLD:g} lets it fill "
        "freely, as if quality did not matter.\n\n"
        + table(("acceptance", "decoding", "tokens/s", "/ autoregressive", "tokens/forward", "stopped"), rows)
    )
    return Section(title=_TITLE, body=body)


def _lengths(llm: LLM, path: Path, count: int) -> tuple[list[list[int]], Sequence[int]]:
    """Questions as token ids, and the token count of each answer; taken evenly from the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    picked = [json.loads(lines[i * len(lines) // count]) for i in range(count)]
    encode = llm.tokenizer.encode
    return [encode(row["question"]) for row in picked], [len(encode(row["answer"])) for row in picked]


def _row(name: str, label: str, one: Pass, base: float) -> tuple[object, ...]:
    forwards = f"{one.tokens_per_forward:.2f}" if one.finished else "-"
    return (name, label, f"{one.rate:.0f}", f"{one.rate / base:.2f}", forwards, "yes" if one.outputs is None else "")
