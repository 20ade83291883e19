"""Measure decoding on this CPU: automatic windows against autoregressive decoding and every fixed window.

    python -m benchmarks.decode [--section load long] [--sampling qwen3] [--threads 2]

Sections: ``load`` (batch sizes 1 to 64, three regimes of entropy, two models), ``long`` (the same after prompts of
1,500 tokens, one model, batch sizes 1, 8, 32, 64). The sections write one dated result together. Step costs are
measured again in every run. ``--sampling qwen3`` decodes with temperature 0.6, top_k 20 and top_p 0.95 in place of a
regime's own temperature.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.common import SAMPLING, write_result
from benchmarks.decode.load import Section, Settings, load, long_contexts
from benchmarks.decode.passes import Budget
from benchmarks.decode.workloads import MODELS

SECTIONS: Mapping[str, Callable[[Settings], Section]] = {
    "load": load,
    "long": long_contexts,
}


def main() -> None:
    """Run the sections, print rows as they are measured, write one file."""
    args = _parser().parse_args()
    torch.set_num_threads(args.threads)
    budget = Budget(seconds=args.point_seconds)
    settings = Settings(
        threads=args.threads,
        budget=budget,
        models=args.models,
        batches=args.batches,
        sampling=SAMPLING[args.sampling],
    )
    begin, sections = time.monotonic(), []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["WEDLM_CACHE_HOME"] = cache  # measure step costs now instead of reading an older cache
        for name in args.section:
            print(f"== {name}", flush=True)
            sections.append(SECTIONS[name](settings))
            print(f"-- {time.monotonic() - begin:.0f} s", flush=True)
    suffix = "" if args.sampling == "own" else f"-{args.sampling}"
    suffix += "" if set(args.section) == set(SECTIONS) else "-" + "-".join(args.section)
    body = _body(sections, time.monotonic() - begin)
    command = " ".join(["python -m benchmarks.decode", *sys.argv[1:]])
    write_result(f"decode{suffix}", "Decoding on a CPU", command, body, threads=args.threads)


def _body(sections: list[Section], seconds: float) -> str:
    parts = [f"The whole run took {seconds / 60:.0f} minutes.\n\n{_MODELS}"]
    parts += [f"## {section.title}\n\n{section.body}" for section in sections]
    return "\n\n".join(parts)


_MODELS = (
    "Models: `tiny`, the shipped one (1.1M parameters), on held-out problems to their end: low and medium entropy "
    "greedy, high entropy (open-ended prompts) at temperature 1, since at 0 it has its phrases by heart. "
    "`random-25m`: 25.5M random parameters, Qwen3-style, 10 layers of 384, tied "
    "embeddings, 32 to 96 tokens each. It has no regimes of its own; attention outputs scaled "
    "by 30 and queries by 6 and a head scale of 0.2 (about 2.4 nats) give drafts that are hardly ever right at "
    "temperature 0 (`hostile`: one in sixteen), and since draft and verifier share the noise of a position, more often "
    "right at temperature 6 (`high`), 20 (`medium`) and 60 (`low`). With W=16 that is 1.06, 2.7, 6.8 and 11.3 tokens "
    "per forward; a trained prototype had 2.6 in high and 6.8 in medium entropy. After long prompts 6.7, "
    "24 and 64 give 2.7, 6.8 and 10.3."
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--sampling", default="own", choices=list(SAMPLING))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: torch's own, all cores")
    parser.add_argument("--point-seconds", type=float, default=12.0, help="rounds are added to a race until then")
    return parser


if __name__ == "__main__":
    main()
