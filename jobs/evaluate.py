"""Measure a model: on its held-out problems, or on the questions of data sets.

``wedlm-batch evaluate --model tiny``: the problems of the shipped model's corpus. For every strategy: accuracy, tokens
per forward and prefix cacheability, per family and per regime; and the share of generations whose tokens equal the
autoregressive ones. Every other problem is asked as plain text, the others through the chat template. ``--output`` gets
``evaluation.md`` and ``evaluation.json``.

``wedlm-batch evaluate --tasks gsm8k=test.jsonl --output out/evaluation``: public data sets, or some of one's own,
through runs that continue where they were interrupted; ``--table 1`` has the tasks and settings of the paper's table.

Exit status:
  0         measured
  1         it failed; the same command continues
  2         the model, the data or a setting is at fault
  3         nothing was generated for any question
  130, 143  interrupted; the same command continues
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs import evaluate_tasks
from jobs.cli import Parser
from jobs.generate import stop
from jobs.quiet_end import end_quietly
from wedlm_core import LLM, EngineConfig, Generation, SamplingParams, Strategy
from wedlm_core.errors import WeDLMError
from wedlm_core.sampling_params import DEFAULT_WINDOW
from wedlm_core.training import corpus
from wedlm_core.training.evaluation import REGIMES, Score, by_family, by_regime, held_out

__all__ = ["Result", "ask", "main", "measure"]

MAX_TOKENS = 192


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one strategy gave on the problems.

    Attributes:
        wrong: ``(family, prompt, good answer, text)`` of every answer that the checker refuses.
        equal_to_autoregressive: share of generations with the very tokens of ``autoregressive``, if measured.
        seconds: wall-clock time of the whole batch.
    """

    strategy: str
    families: Mapping[str, Score]
    regimes: Mapping[str, Score]
    wrong: Sequence[tuple[str, str, str, str]]
    equal_to_autoregressive: float | None
    seconds: float


def ask(llm: LLM, problems: Sequence[corpus.Problem], params: SamplingParams, form: str = "both") -> list[Generation]:
    """Generate for every problem; ``form`` is raw, chat, or both (alternating)."""
    prompts: list[str | list[int]] = []
    for i, problem in enumerate(problems):
        chat = form == "chat" or (form == "both" and i % 2 == 0)
        messages = [{"role": "user", "content": problem.prompt}]
        prompts.append(llm.tokenizer.apply_chat_template(messages) if chat else problem.prompt)
    return llm.generate(prompts, params)


def measure(
    llm: LLM,
    problems: Sequence[corpus.Problem],
    strategies: Sequence[str],
    *,
    window: int,
    form: str = "both",
    temperature: float = 0.0,
    seed: int = 0,
) -> list[Result]:
    """One result per strategy, all with the same seed; equality is against ``autoregressive``, if asked for."""
    results, generated = [], {}
    for name in sorted(strategies, key=lambda s: s != Strategy.AUTOREGRESSIVE):
        params = SamplingParams(
            max_tokens=MAX_TOKENS, strategy=name, window_size=window, temperature=temperature, seed=seed
        )
        started = time.monotonic()
        generations = ask(llm, problems, params, form)
        seconds = time.monotonic() - started
        generated[name] = [g.token_ids for g in generations]
        plain = generated.get(Strategy.AUTOREGRESSIVE.value)
        equal = None if plain is None else sum(a == b for a, b in zip(plain, generated[name], strict=True)) / len(plain)
        results.append(
            Result(
                strategy=name,
                families=by_family(problems, generations),
                regimes=by_regime(problems, generations),
                wrong=[
                    (p.family, p.prompt, p.answer, g.text)
                    for p, g in zip(problems, generations, strict=True)
                    if not corpus.check(p, g.text)
                ],
                equal_to_autoregressive=equal,
                seconds=seconds,
            )
        )
    return results


def _cells(score: Score) -> str:
    return f"{score.accuracy:.3f} | {score.tokens_per_forward:.2f} | {score.prefix_cacheability:.2f}"


def markdown(results: Sequence[Result], title: str) -> str:
    """Two tables per result: by regime and by family."""
    lines = [f"# {title}", "", "Accuracy, tokens per forward and p_cache are ratios of sums over the problems.", ""]
    for result in results:
        equal = result.equal_to_autoregressive
        tokens = sum(score.tokens for score in result.regimes.values())
        lines += [f"## {result.strategy}", ""]
        lines += [f"{tokens} tokens in {result.seconds:.1f} s."]
        lines += [] if equal is None else [f"Token for token equal to autoregressive: {equal:.1%} of the problems."]
        lines += ["", "| group | problems | accuracy | tokens per forward | p_cache |", "|---|---|---|---|---|"]
        for name in REGIMES:
            if name in result.regimes:
                score = result.regimes[name]
                lines.append(f"| **{name} entropy** | {score.problems} | {_cells(score)} |")
        lines += [f"| {name} | {score.problems} | {_cells(score)} |" for name, score in result.families.items()]
        lines.append("")
    return "\n".join(lines)


def _write(folder: Path, results: Sequence[Result], title: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.md").write_text(markdown(results, title), encoding="utf-8")
    raw = [dataclasses.asdict(result) for result in results]
    (folder / "evaluation.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.evaluate") -> int:
    """Measure, print and write; the exit status (2: the model or a setting is at fault)."""
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--strategies", nargs="+", default=None, choices=list(Strategy))
    parser.add_argument("--families", nargs="+", default=None, choices=list(corpus.FAMILIES))
    parser.add_argument("--split", default="test", choices=corpus.SPLITS)
    parser.add_argument("--per-family", type=int, default=40)
    parser.add_argument("--window", type=int, default=None, help="masks per forward (16; of data sets: as in settings)")
    parser.add_argument("--temperature", type=float, default=None, help="0, unless a task has its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sequences", type=int, default=64, help="sequences decoded at once")
    parser.add_argument("--form", default="both", choices=("raw", "chat", "both"))
    parser.add_argument("--failures", type=int, default=0, help="print this many wrong answers of each family")
    parser.add_argument("--output", type=str, default=None)
    evaluate_tasks.add_options(parser)
    arguments = parser.parse_args(argv)
    if evaluate_tasks.is_asked_for(arguments):
        signal.signal(signal.SIGTERM, stop)
        return evaluate_tasks.perform(arguments)
    try:
        return _evaluate(arguments)
    except WeDLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _evaluate(arguments: argparse.Namespace) -> int:
    problems = held_out(arguments.split, arguments.per_family, arguments.families)
    window, temperature = arguments.window or DEFAULT_WINDOW, arguments.temperature or 0.0
    strategies = arguments.strategies or [s.value for s in Strategy]
    llm = LLM(arguments.model, config=EngineConfig(max_num_seqs=arguments.sequences))
    results = measure(
        llm, problems, strategies, window=window, form=arguments.form, temperature=temperature, seed=arguments.seed,
    )  # fmt: skip
    how = f"temperature {temperature:g}, W={window}, {arguments.sequences} sequences at once"
    title = f"{arguments.model}: {len(problems)} problems of the {arguments.split} split, {how}"
    print(markdown(results, title))
    for result in results:
        _print_failures(result, arguments.failures)
    if arguments.output:
        _write(Path(arguments.output), results, title)
    return 0


def _print_failures(result: Result, count: int) -> None:
    left = dict.fromkeys(corpus.FAMILIES, count)
    for family, prompt, answer, text in result.wrong:
        if left[family]:
            left[family] -= 1
            print(f"{result.strategy} {family}: {prompt!r}\n  good {answer!r}\n  got  {text!r}")


if __name__ == "__main__":
    raise SystemExit(end_quietly(main, "evaluate"))
