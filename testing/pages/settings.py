"""Settings on a page: a YAML block that is no file of its own is built into the configuration that it would be."""

from __future__ import annotations

import yaml

from pipeline.commands.etl_config import EtlConfig
from pipeline.config import RunConfig
from pipeline.settings.plain_data import build


def check_settings(text: str) -> None:
    """Build the configuration of a job with these settings; input and output are filled in where they are left out.

    Raises:
        ConfigError: as for a job's file: unknown fields, values out of range, contradictions.
    """
    given = {"input": "prompts/", "output": "out/", **yaml.safe_load(text)}
    schedule = given.pop("etl", None)
    run = RunConfig.from_mapping(given)
    if schedule is not None:
        build(EtlConfig, {"run": run, **schedule}, root=EtlConfig)
