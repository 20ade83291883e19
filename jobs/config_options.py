"""The options that stand for fields of a configuration, in one table: parsers and configurations are made from it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from pipeline import RunConfig
from pipeline.codec import literal_secrets, masked
from pipeline.settings.reasoning import NAMED
from pipeline.settings.tool_calls import MODES_OF_TOOLS
from pipeline.settings.values import choices_of
from wedlm_core.sampling_params import Strategy

_QUOTED = re.compile(r"'[^'<>]{2,}'")
_URLS = ("input", "output", "model")
_FLAG = {"action": "store_true", "default": None}


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that is a short form of ``--set FIELD=VALUE``.

    Attributes:
        flag: its name on the command line.
        path: the field of ``RunConfig``, dotted.
        help: one sentence.
        keywords: further keyword arguments of ``add_argument``.
    """

    flag: str
    path: str
    help: str
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dest(self) -> str:
        """The attribute of the parsed options."""
        return self.flag.lstrip("-").replace("-", "_")


def parse_actors(text: str) -> int | dict[str, int]:
    """``"4"``, or ``"1-64"`` as a range, for ``argparse``."""
    least, dash, most = text.partition("-")
    try:
        return {"min": int(least), "max": int(most)} if dash and least else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a number or a range, for example 4 or 1-64") from None


def parse_schema(text: str) -> str | dict[str, str]:
    """A JSON schema as it is written, or the file that has it, for ``argparse``."""
    return text if text.lstrip().startswith("{") else {"file": text}


def parse_tool_choice(text: str) -> str | dict[str, str]:
    """A choice of tools, or the name of one, for ``argparse``."""
    return text if text in MODES_OF_TOOLS else {"name": text}


def parse_path(text: str) -> Path:
    """A file or folder, for ``argparse``; the path of an empty text would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be a path, is empty. Name a file or folder, or leave it out.")
    return Path(text)


def parse_reference(text: str) -> dict[str, Any]:
    """A reference to a secret, for ``argparse``; the secret itself is refused, and not shown."""
    try:
        found = read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or len(found) != 1 or not found.keys() <= {"env", "file"}:
        raise argparse.ArgumentTypeError("must say where the secret is: {env: NAME} or {file: /path}")
    return found


def parse_options(text: str) -> dict[str, Any]:
    """Keyword arguments from YAML (or JSON) text, for ``argparse``; warns of secrets among them."""
    try:
        options = read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not YAML ({yaml_fault(error)}). Write for example {{anon: true}}.") from None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(
            f"must be a mapping, is a {type(options).__name__}. Write for example {{anon: true}}."
        )
    warn_of_literals({"storage_options": options})
    return options


def warn_of_literals(given: Mapping[str, Any]) -> None:
    """Warn of secrets on the command line, where everybody on the machine can read them."""
    found = [place.lstrip(".") for place in literal_secrets(given, "")]
    for names, remedy in (
        ([name for name in found if name in _URLS], "Give the URL without credentials, and these in storage_options as "
                                                    "{env: NAME} or {file: /path}."),
        ([name for name in found if name not in _URLS], "Write {env: NAME} or {file: /path}, here or in --config."),
    ):  # fmt: skip
        if names:
            seen = "on the command line, which every user of this machine can list"
            print(f"warning: {', '.join(names)}: {seen}. {remedy}", file=sys.stderr)


def yaml_fault(error: Exception) -> str:
    """Where and why text is not YAML, without the text: it may hold credentials."""
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return place + _QUOTED.sub("'...'", getattr(error, "problem", None) or type(error).__name__)


def _option(flag: str, place: str, text: str, **keywords: Any) -> Option:
    return Option(flag=flag, path=place, help=text, keywords=keywords)


def _choices(name: str) -> tuple[str, ...]:
    return choices_of(RunConfig, name)


OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "input and output": (
        _option("--input", "input", "Read this file, folder, glob, URL, or dataset of the hub.", metavar="PATH"),
        _option("--output", "output", "Write to this folder or URL; a second run continues there.", metavar="FOLDER"),
        _option("--model", "model", 'Use this model: a folder, a URL, a hub id, or "tiny" (shipped).', metavar="NAME"),
        _option("--adapter", "adapter", "Add this LoRA adapter (peft's format) to its weights.", metavar="NAME"),
        _option("--mode", "mode", "If the output exists, continue it (the default), discard it, or stop.",
                choices=_choices("mode")),
        _option("--limit", "limit", "Read at most this many rows.", type=int, metavar="ROWS"),
        _option("--id-column", "id_column", "Take unique row ids from this column.", metavar="NAME"),
        _option("--input-format", "input_format",
                "Read the input in this format; openai-batch files are recognised without it.",
                choices=_choices("input_format")),
        _option("--output-format", "output_format", "Publish files in this format (parquet).",
                choices=_choices("output_format")),
        _option("--storage-options", "storage_options",
                "Pass these keyword arguments to the file systems of URLs; write secrets as {env: NAME} or "
                "{file: /path}.", type=parse_options, metavar="YAML"),
    ),
    "prompts": (
        _option("--prompt-column", "prompt_column", "Take text prompts from this column (prompt).", metavar="NAME"),
        _option("--messages-column", "messages_column",
                "Take conversations, lists of role and content, from this column (messages).", metavar="NAME"),
        _option("--turns-column", "turns_column",
                "Answer the user's turns in this column, a list for each row, one after the other.", metavar="NAME"),
        _option("--prompt-template", "prompt_template",
                'Make prompts from columns with this Jinja template, such as "{{ question }}".', metavar="JINJA"),
        _option("--chat", "chat", "Wrap prompts in the model's chat template.", **_FLAG),
        _option("--system-prompt", "system_prompt", "Put this system message before conversations without one.",
                metavar="TEXT"),
        _option("--on-long-prompt", "on_long_prompt", "Fail rows whose prompts do not fit (the default), or cut them.",
                choices=_choices("on_long_prompt")),
        _option("--served-model-name", "served_model_names",
                "Accept this model name in requests of an OpenAI batch (repeatable; * is any).", action="append",
                metavar="NAME"),
    ),
    "decoding": (
        _option("--max-tokens", "sampling.max_tokens", "Generate at most this many tokens for a row (256).", type=int,
                metavar="N"),
        _option("--temperature", "sampling.temperature",
                "Sample at this temperature; 0 (the default) takes the likeliest token.", type=float, metavar="T"),
        _option("--top-p", "sampling.top_p", "Sample from the likeliest tokens that reach this probability (1).",
                type=float, metavar="P"),
        _option("--n", "sampling.n", "Generate this many samples for each row (1).", type=int, metavar="N"),
        _option("--seed", "seed", "Draw samples with this seed (0).", type=int, metavar="N"),
        _option("--strategy", "sampling.strategy", "Decode with this strategy (verified).",
                choices=[strategy.value for strategy in Strategy]),
        _option("--schema", "sampling.structured_outputs.json",
                "Generate JSON of this schema: a file, or the schema itself.", type=parse_schema, metavar="FILE"),
        _option("--choices", "sampling.structured_outputs.choice", "Generate one of these texts.", nargs="+",
                metavar="TEXT"),
        _option("--tool-choice", "tool_choice",
                "Read calls of tools into the column tool_calls (auto), force one (required), or one of this tool.",
                type=parse_tool_choice, metavar="auto|none|required|NAME"),
        _option("--reasoning-parser", "reasoning_parser",
                "Write the text in <think> tags to the column reasoning, and the answer after it to text.",
                choices=list(NAMED)),
    ),
    "actors and failures": (
        _option("--actors", "actors", "Start this many actors, or a number in this range that follows the work (1).",
                type=parse_actors, metavar="N|MIN-MAX"),
        _option("--retry-failed", "retry_failed", "Generate the failed rows of the output again.", **_FLAG),
        _option("--repair", "repair",
                "Check every published file, and generate the rows of damaged or missing files again.", **_FLAG),
        _option("--max-failed-fraction", "max_failed_fraction", "Stop when a larger share of the rows fails (1).",
                type=float, metavar="SHARE"),
        _option("--max-row-deaths", "max_row_deaths", "Quarantine a row after it has killed this many processes (2).",
                type=int, metavar="N"),
    ),
}  # fmt: skip
"""Heading in ``--help`` -> its options. The value in parentheses is the default."""


def _without(*flags: str) -> dict[str, tuple[Option, ...]]:
    """The options, without some."""
    return {name: tuple(own for own in options if own.flag not in flags) for name, options in OPTIONS.items()}


SCORE_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    name: options for name, options in _without("--turns-column").items() if name != "decoding"
} | {
    "texts to score": (
        _option("--choices", "task.choices", "Score each of these texts after every prompt.", nargs="+",
                metavar="TEXT"),
        _option("--choices-column", "task.choices_column", "Take each row's texts, a list, from this column.",
                metavar="NAME"),
        _option("--continuation-column", "task.continuation_column", "Take each row's one text from this column.",
                metavar="NAME"),
        _option("--with-end", "task.with_end", "Put the end-of-sequence token after each text.", **_FLAG),
    ),
}  # fmt: skip
"""Those of the command ``score``."""


_ONLY_OF_TABLES = (
    "--input", "--output", "--mode", "--limit", "--id-column", "--input-format", "--output-format", "--prompt-column",
    "--messages-column", "--turns-column", "--prompt-template", "--chat", "--system-prompt", "--retry-failed",
    "--repair",
)  # fmt: skip
SERVE_OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "store": (_option("--store", "output", "Keep files, batches and rows in this folder or URL.", required=True,
                      metavar="FOLDER"),),
    **_without(*_ONLY_OF_TABLES),
}  # fmt: skip
"""Those of the command ``serve``, whose input is files of requests."""


def add_config_options(parser: argparse.ArgumentParser, groups: Mapping[str, tuple[Option, ...]] = OPTIONS) -> None:
    """``--config``, ``--set``, ``--print-config``, and the options of ``groups``."""
    parser.set_defaults(groups=groups)
    parser.add_argument("--config", type=parse_path, metavar="FILE", help="Read settings from this YAML file.")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        dest="settings",
        help="Set any field by its dotted name, with a YAML value, such as engine.max_num_seqs=64 (repeatable).",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="Print every setting as YAML for --config, and do nothing else."
    )
    for heading, options in groups.items():
        group = parser.add_argument_group(heading)
        for option in options:
            group.add_argument(option.flag, dest=option.dest, help=option.help, **option.keywords)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """``OUTPUT`` and ``--storage-options``: for commands about the output of a run."""
    parser.add_argument("output", metavar="OUTPUT", help="Read this output: the folder or URL of a run.")
    parser.add_argument(
        "--storage-options",
        type=parse_options,
        metavar="YAML",
        help="Pass these keyword arguments to the file systems of URLs; write secrets as {env: NAME} or {file: /path}.",
    )


_NAME = re.compile(r"[A-Za-z_][\w.-]*")


class _Loader(yaml.SafeLoader):
    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        _refuse_cycles(node, set(), set())
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = getattr(key, "value", None)
            if isinstance(name, str) and name != "<<":
                if name in seen:
                    shown = name if _NAME.fullmatch(name) else "a key"
                    raise yaml.constructor.ConstructorError(None, None, f"{shown} stands twice", key.start_mark)
                seen.add(name)
        return super().construct_mapping(node, deep)


def _refuse_cycles(node: Any, around: set[int], done: set[int]) -> None:
    """Refuse a node that contains itself, by an alias."""
    if id(node) in around:
        raise yaml.constructor.ConstructorError(None, None, "an alias names a value that contains it", node.start_mark)
    if id(node) in done or not isinstance(node, yaml.CollectionNode):
        return
    around.add(id(node))
    for part in node.value:
        for one in part if isinstance(part, tuple) else (part,):
            _refuse_cycles(one, around, done)
    around.remove(id(node))
    done.add(id(node))


def read_yaml(text: str) -> Any:
    """The value that a YAML text describes.

    Raises:
        yaml.YAMLError: it is none, a key stands twice in a mapping, or a value is part of itself.
    """
    return yaml.load(text, Loader=_Loader)  # a safe loader


def as_yaml(config: RunConfig) -> str:
    """Every field of the configuration. References to secrets stay; secrets themselves are masked, and named above."""
    masks = [f"# {place} is masked: write {{env: NAME}} or {{file: /path}} in its place"
             + (", in storage_options.\n" if place in ("input", "output", "model") else ".\n")
             for place in config.literal_secrets()]  # fmt: skip
    plain = masked(_plain(config))
    # A schema as it is: a field may be called "password", and any change makes another schema.
    structure = config.sampling.structure
    plain["sampling"]["structured_outputs"] = None if structure is None else _schema_apart(structure.as_dict())
    for name, parse in config.parse.items():
        if parse.json is not None:
            plain["parse"][name] = _schema_apart({"json": parse.json, "after": parse.after})
    return "".join(masks) + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _schema_apart(own: dict[str, Any]) -> dict[str, Any]:
    """Fields whose ``json`` is a mapping in place of its text."""
    return own | {"json": json.loads(own["json"])} if isinstance(own.get("json"), str) else own


def _plain(value: Any) -> Any:
    """Mappings, lists and scalars, as YAML has them."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
