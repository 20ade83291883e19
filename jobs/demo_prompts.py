"""Write the prompt file of the demo: held-out problems of every family, families interleaved.

Example:
  python -m jobs.demo_prompts

Writes jobs/data/demo_prompts.parquet with the columns prompt, family, regime and expected (the one good answer; null
where several are good). The file is the same every time.

Exit status:
  0  written
  1  it cannot be written
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wedlm_core.training import corpus

DEMO_PROMPTS = Path(__file__).parent / "data" / "demo_prompts.parquet"


def demo_table(per_family: int, seed: int = 1) -> pa.Table:
    """``per_family`` problems of the test split from each family, one family after the other in turn."""
    drawn = [corpus.distinct(name, "test", per_family, seed) for name in corpus.FAMILIES]
    problems = [problem for turn in zip(*drawn, strict=True) for problem in turn]
    columns = {
        "prompt": [p.prompt for p in problems],
        "family": [p.family for p in problems],
        "regime": [p.regime for p in problems],
        "expected": [p.answer if p.unique else None for p in problems],
    }
    return pa.table(columns, schema=pa.schema([(name, pa.string()) for name in columns]))


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=DEMO_PROMPTS)
    parser.add_argument("--per-family", type=int, default=12)
    arguments = parser.parse_args()
    table = demo_table(arguments.per_family)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, arguments.output)
    print(f"{table.num_rows} prompts written to {arguments.output}")


if __name__ == "__main__":
    main()
