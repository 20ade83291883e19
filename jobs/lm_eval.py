"""Run lm-evaluation-harness with a model of this package.

Example:
  wedlm-batch lm-eval --model wedlm_batch --model_args pretrained=tiny --tasks arc_easy

The command lm-eval of EleutherAI (extra eval), unchanged, in a process where the model wedlm_batch is registered: by
itself lm-eval does not find models of other packages. All arguments are lm-eval's; wedlm-batch lm-eval run --help lists
them. --model_args: pretrained (a folder, a URL, a hub id, or tiny), dtype, device, max_length, max_gen_toks, the fields
of EngineConfig, and strategy, window_size, entropy_threshold and position_penalty of SamplingParams.

Exit status:
  0  evaluated
  1  lm-eval failed
  2  lm-eval is not installed, or an argument is at fault
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from jobs.command import Parser, end_quietly, refused
from pipeline.codec import WeDLMError


def main(argv: Sequence[str] | None = None, prog: str = "python -m jobs.lm_eval") -> int:
    """Run lm-eval's command; the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] in ("-h", "--help", "--version"):
        parser = Parser(prog, __doc__)
        parser.parse_args(given or ["--help"])
    return end_quietly(lambda: _evaluate(given, prog))


def _evaluate(given: Sequence[str], prog: str) -> int:
    try:
        from lm_eval.__main__ import cli_evaluate

        importlib.import_module(
            "wedlm_batch.lm_eval_model"
        )  # registers the model; by name, as it stands above the jobs
    except ImportError as error:
        print(f"error: {error}. lm-eval is needed: pip install 'wedlm-batch[eval]'", file=sys.stderr)
        return 2
    before, sys.argv = sys.argv, [prog, *given]
    try:
        cli_evaluate()
    except WeDLMError as error:
        return refused(error)
    finally:
        sys.argv = before
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
