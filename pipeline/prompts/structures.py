"""Forms of outputs that rows and requests ask for, as fields of ``StructuredOutputs``; and whether they compile."""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.codec import Failure, Generation, RequestError, StructuredOutputs, WeDLMError, explain, read_json
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.prompts.continuations import check_continuations
from pipeline.prompts.limited_process import ExceededError, LimitedProcess, UnstartedError
from pipeline.prompts.model_files import ResolvedModel, resolved_model
from pipeline.prompts.prompt import no_value
from pipeline.settings.reasoning import Tags
from pipeline.settings.tool_calls import OPEN
from wedlm_core.grammar import GrammarCompiler
from wedlm_core.grammar.compiler import checker
from wedlm_core.grammar.keywords import ENFORCED, NOTES
from wedlm_core.structured_outputs import KINDS
from wedlm_core.tokenizer import Tokenizer

FREE: Mapping[str, Any] = {}
"""No fields: the output is free, whatever the run asks for."""
_FORMATS = ("text", "json_object", "json_schema")


def of_cell(name: str, value: Any) -> Mapping[str, Any]:
    """The fields that a cell of the column ``name`` stands for.

    Args:
        name: of the column.
        value: JSON text or a mapping: a JSON schema, OpenAI's ``response_format``, or fields of ``StructuredOutputs``.
            In a mapping of a struct column, a null is a key that only other rows have.

    Raises:
        RequestError: it is none of these.
    """
    if isinstance(value, Exception):  # a cell that has no value
        raise no_value(f"column {name!r}", value)
    if isinstance(value, (str, bytes)):
        try:
            value = read_json(value)
        except (ValueError, RecursionError) as error:
            rule = f"not JSON ({str(error) or 'nested too deeply'})"
            raise RequestError(explain(name, value, rule, "Write a JSON schema, or null.")) from None
    else:
        value = _without_nulls(value)
    if not isinstance(value, Mapping):
        rule = "a JSON schema is an object, as are response_format and fields of StructuredOutputs"
        raise RequestError(explain(name, value, rule, 'Write {"type": "object", "properties": {...}}.'))
    if value.get("type") in _FORMATS:
        return of_response_format(name, value)
    if any(kind in value for kind in KINDS):
        return value
    _check_meant_as_schema(name, value)
    return {"json": value}


def _check_meant_as_schema(name: str, value: Mapping[str, Any]) -> None:
    """Refuse an object without any keyword of a schema that has a name much like a field of StructuredOutputs."""
    if not value or any(keyword in ENFORCED or keyword in NOTES for keyword in value):
        return
    near = [(key, found[0]) for key in value if (found := difflib.get_close_matches(str(key), KINDS, n=1))]
    if near:
        rule = f"neither a keyword of JSON schemas nor one of {', '.join(KINDS)}"
        raise RequestError(explain(f"{name}: {near[0][0]}", value[near[0][0]], rule, f"Did you mean {near[0][1]!r}?"))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def of_response_format(name: str, value: Any) -> Mapping[str, Any]:
    """The fields that OpenAI's ``response_format`` stands for; ``strict`` or not, it is obeyed.

    Raises:
        RequestError: it is malformed; ``name`` says where it stands.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in _FORMATS or not isinstance(kind, str):
        rule = f"an object whose type is one of {list(_FORMATS)}"
        raise RequestError(explain(name, value, rule, 'Write {"type": "json_schema", "json_schema": {...}}.'))
    if kind == "text":
        return FREE
    if kind == "json_object":
        return {"json_object": True}
    given = value.get("json_schema")
    schema = given.get("schema") if isinstance(given, Mapping) else None
    if schema is None:
        remedy = 'Write {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}.'
        raise RequestError(explain(f"{name}.json_schema", given, "has the schema under the name schema", remedy))
    return {"json": schema}


def check_structure(config: RunConfig) -> None:
    """Check that the form of all outputs of a run can be compiled for its model, and its texts to score encoded.

    Raises:
        ConfigError: they cannot; or ``parsed`` could not be read after ``after``.
        WeightsError: the model or its tokenizer cannot be read.
    """
    if config.sampling.structure is not None:
        try:
            arguments = compiler_arguments(resolved_model(config))
            GrammarCompiler(*arguments).check(config.sampling.structure)
        except WeDLMError as error:
            raise ConfigError(f"sampling.{error}") from error
    if config.has_scores:
        check_continuations(config)
    if config.turns_column is not None:
        from pipeline.prompts.turns import check_turns

        check_turns(config)
    if config.tool_choice not in (None, "none") and special_token(config, OPEN) is not None:
        rule = f"{OPEN} is a special token of this model, which text leaves out, so calls cannot be read"
        raise ConfigError(explain("tool_choice", config.tool_choice, rule, 'Use "none".'))
    for name, parse in config.parsed.items():
        if parse.after is not None and not config.include_token_ids and special_token(config, parse.after) is not None:
            rule = f"{parse.after!r} is a special token, which text leaves out, so {name} needs token_ids to find it"
            raise ConfigError(explain("include_token_ids", False, rule, "Leave it out."))


def compiler_arguments(model: ResolvedModel) -> tuple[str, int, Sequence[int]]:
    """The arguments of :class:`GrammarCompiler` in the engine of a model."""
    ends = dict.fromkeys((*model.tokenizer.eos_token_ids, *model.config.eos_token_ids))
    size = model.config.vocab_size
    return model.tokenizer.to_json(), size, [token for token in ends if token < size]


@functools.lru_cache(maxsize=2)
def _special_ids(tokenizer: Tokenizer) -> Mapping[str, int]:
    raw = json.loads(tokenizer.to_json()).get("added_tokens", ())
    return {token["content"]: token["id"] for token in raw if token.get("special")}


def special_token(config: RunConfig, text: str) -> int | None:
    """The id of a special token of the model, which texts of generations leave out; None if ``text`` is none."""
    return _special_ids(resolved_model(config).tokenizer).get(text)


def with_special_tags(config: RunConfig, tags: Sequence[str], text: str, ids: Sequence[int]) -> str:
    """A text with those of ``tags`` that are special tokens of the model, where each came first.

    ``tags``: in their order in a text.
    """
    end = len(ids)
    for tag in reversed(tags):
        token = special_token(config, tag)
        if token is not None and token in ids[:end]:
            end = ids.index(token)
            place = len(resolved_model(config).tokenizer.decode(ids[:end]))
            text = text[:place] + tag + text[place:]
    return text


_SPACES = 32
"""Most tokens of white space between a tag and the end of a prompt."""


def split_reasoning(
    config: RunConfig, tags: Tags, generation: Generation, prompt: Callable[[], Sequence[int]]
) -> tuple[str | None, str]:
    """The reasoning of a generation, None if it has none, and its answer; ``prompt``: gives its prompt's tokens."""
    special = [tag for tag in (tags.open, tags.close) if special_token(config, tag) is not None]
    text = generation.text
    if special:
        text = with_special_tags(config, special, text, generation.token_ids)
    opened = False
    if tags.close not in text:
        longest = len(tags.open.encode()) + _SPACES  # a token has a byte or more
        end = resolved_model(config).tokenizer.decode(prompt()[-longest:], skip_special_tokens=False)
        opened = end.rstrip().endswith(tags.open)
    return tags.split(text, opened=opened)


def with_tag(config: RunConfig, tag: str, token: int, texts: pa.ChunkedArray, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts with a special token where it came first; those without it as they are."""
    decode = resolved_model(config).tokenizer.decode
    found = [
        text if own is None or token not in own else tag + decode(own[own.index(token) + 1 :])
        for text, own in zip(texts.to_pylist(), ids.to_pylist(), strict=True)
    ]
    return pa.chunked_array([found], pa.string())


_SECONDS, _BYTES = 5, 1 << 30  # of a grammar; large ones take a second
_KNOWN = 256  # grammars whose faults are kept


def grammar_faults(given: Sequence[Mapping[str, Any] | None], config: RunConfig) -> dict[int, Failure]:
    """Checks rows' own grammars; gives the reason of each that fails, by the place of the row.

    ``given``: each row's own sampling parameters.
    """
    asked: dict[str, list[int]] = {}
    for place, own in enumerate(given):
        if own and own.get("structured_outputs"):
            asked.setdefault(json.dumps(own["structured_outputs"], default=str), []).append(place)
    faults = dict[int, Failure]()
    for places in asked.values():
        fault = _fault((given[places[0]] or {})["structured_outputs"], config)
        if fault is not None:
            faults |= dict.fromkeys(places, fault)
    return faults


def _fault(fields: Any, config: RunConfig) -> Failure | None:
    try:
        wanted = StructuredOutputs(**fields)
    except Exception:  # reported with the row's other parameters
        return None
    return _compiler(resolved_model(config))(wanted)


@functools.lru_cache(maxsize=1)
def _compiler(model: ResolvedModel) -> Callable[[StructuredOutputs], Failure | None]:
    """Says why a grammar cannot be compiled for a model within the limits."""
    process = LimitedProcess(checker, lambda: compiler_arguments(model), seconds=_SECONDS, most_bytes=_BYTES)

    @functools.lru_cache(maxsize=_KNOWN)
    def fault(wanted: StructuredOutputs) -> Failure | None:
        try:
            process.ask(wanted)
        except ExceededError as exceeded:
            rule = f"its compilation {exceeded}"
            value = getattr(wanted, wanted.kind)
            return Failure.of(RequestError(explain(f"structured_outputs.{wanted.kind}", value, rule, "Simplify it.")))
        except UnstartedError:  # no fault of the row
            raise
        except Exception as error:
            return Failure.of(error)
        return None

    return fault


os.register_at_fork(after_in_child=_compiler.cache_clear)  # two processes cannot share a connection
