"""Scale a model's channels, from rows of your own, before its weights are rounded to 8 or 4 bits.

Example:
  wedlm-batch smooth --input prompts.jsonl --model models/mine

Reads the prompts of a sample of the rows, finds a power of two for each channel, and writes them to
smoothing.safetensors in the model's folder. Runs with engine.smoothing: model use that file. With --to FILE it is
written elsewhere, and engine.smoothing is its path. The dtype is engine.weight_dtype, or int8 if that is not set.
Another file is another model: an output that was begun with one is not continued with the other.

Exit status:
  0         written
  2         configuration, input or model are at fault
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.cli import NO_OUTPUT, collect, show_stages
from jobs.command import Command, Parser
from jobs.config_options import add_config_options, parse_path
from pipeline.codec import EXACT_WEIGHT_DTYPES
from pipeline.commands.calibration_sample import sample_token_ids
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.prompts.model_files import resolved_model
from wedlm_core.model.smoothing_names import SMOOTHING_FILE


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser)
    parser.add_argument(
        "--rows", type=int, default=256, metavar="N", help="Sample this many rows (256, which is the most)."
    )
    parser.add_argument(
        "--to", type=parse_path, metavar="FILE", help=f"Write to this file (the model's {SMOOTHING_FILE})."
    )
    parser.set_defaults(output=NO_OUTPUT)


def perform(args: argparse.Namespace) -> int:
    """Find the scales and write them."""
    config = collect(args)
    path = args.to or _beside(config)
    show_stages()
    scaled, channels = _write(config, sample_token_ids(config, args.rows), path)
    used = "model" if args.to is None else str(path)
    print(f"{path}: {scaled} of {channels} channels are scaled\nuse: --set engine.smoothing={used}")
    return 0


def _beside(config: RunConfig) -> Path:
    """The file in the model's folder, if the folder is the user's."""
    if not Path(config.model).expanduser().is_dir():
        rule = "it is no local folder, so a file next to the weights would not last"
        raise ConfigError(f"model={config.model_name!r}: {rule}. Give --to FILE.")
    return Path(config.model).expanduser() / SMOOTHING_FILE


def _write(config: RunConfig, token_ids: list[list[int]], path: Path) -> tuple[int, int]:
    """Find and write the scales; how many channels are scaled, and how many there are."""
    from wedlm_core.model.adapter import with_adapter
    from wedlm_core.model.checkpoint import read_checkpoint
    from wedlm_core.model.smoothing_files import save_smoothing, smooth_checkpoint

    dtype = config.engine.weight_dtype
    if dtype not in ("auto", *EXACT_WEIGHT_DTYPES):
        raise ConfigError(f"engine.weight_dtype={dtype!r}: only int8 and int4 are smoothed. Set one of them.")
    model = resolved_model(config)
    read = read_checkpoint(model.folder)
    found = smooth_checkpoint(
        read if model.adapter is None else with_adapter(read, model.adapter), token_ids,
        "int8" if dtype == "auto" else dtype, head=config.engine.quantised_head,
    )  # fmt: skip
    try:
        save_smoothing(found, path)
    except OSError as error:
        raise ConfigError(f"--to {path}: cannot be written ({error.strerror}). Give another FILE.") from error
    each = found.exponents.values()
    return sum(int((one != 0).sum()) for one in each), sum(one.numel() for one in each)


main = Command(name="smooth", about=__doc__, add_options=add_options, perform=perform)

if __name__ == "__main__":
    raise SystemExit(main())
