"""Converts between the pipeline and ``wedlm_core``: rows to Requests, Generations to Arrow columns. Imports no torch.

Besides the worker and the prompt packages this is the only module of the pipeline that imports ``wedlm_core``; the
others import its names (``SamplingParams``, ``EngineConfig``, ``explain``) from here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from wedlm_core.config import EXACT_WEIGHT_DTYPES, EngineConfig
from wedlm_core.errors import CapacityError, RequestError, WeDLMError, explain, first_line
from wedlm_core.errors import ConfigError as CoreConfigError
from wedlm_core.evidence import EVIDENCE
from wedlm_core.file_digest import file_digest, sampled_stretches
from wedlm_core.json_pointer import schema_at
from wedlm_core.option_names import known_fields_only
from wedlm_core.redaction import (
    MASK,
    has_url_credentials,
    keep_url_credentials,
    masked,
    masked_errors,
    quotes_secrets,
    redact,
    redact_forms,
)
from wedlm_core.references import check_references, literal_secrets, remember, resolved
from wedlm_core.seeds import row_seed, sample_seed, turn_seed
from wedlm_core.statistics import (
    DRAFT_COUNTS,
    DRAFT_SOURCES,
    STATISTICS,
    gain_of,
    prefix_cacheability,
    tokens_per_forward,
)
from wedlm_core.templating import BoundedEnvironment, BoundedTemplate, TemplateLimitError, TemplateSyntaxError
from wedlm_core.types import FinishReason, Generation, Request, SamplingParams, StructuredOutputs

__all__ = [
    "DRAFT_COUNTS",
    "DRAFT_SOURCES",
    "EVIDENCE",
    "EXACT_WEIGHT_DTYPES",
    "MASK",
    "STATISTICS",
    "TEXT_PARAMS",
    "BoundedEnvironment",
    "BoundedTemplate",
    "CapacityError",
    "Choice",
    "Conversation",
    "CoreConfigError",
    "EngineConfig",
    "Failure",
    "FinishReason",
    "Generation",
    "Request",
    "RequestError",
    "RowResult",
    "SamplingParams",
    "StructuredOutputs",
    "TemplateLimitError",
    "TemplateSyntaxError",
    "WeDLMError",
    "best_choice",
    "check_references",
    "dead_arrays",
    "explain",
    "file_digest",
    "first_line",
    "foreign_param",
    "gain_of",
    "has_url_credentials",
    "keep_url_credentials",
    "known_fields_only",
    "literal_secrets",
    "make_requests",
    "masked",
    "masked_errors",
    "output_arrays",
    "param_fault",
    "param_of_text",
    "params_hash",
    "params_of_row",
    "plain_params",
    "prefix_cacheability",
    "quotes_secrets",
    "read_json",
    "read_json_at",
    "redact",
    "redact_forms",
    "remember",
    "resolved",
    "sampled_stretches",
    "schema_at",
    "scored_choices",
    "scored_requests",
    "tokens_per_forward",
    "turn_seed",
]

_PARAM_NAMES = tuple(f.name for f in fields(SamplingParams))
_DEFAULTS = asdict(SamplingParams())


def _takes_integers(hint: Any) -> bool:
    """Whether a field of this type is a number of integers, perhaps among others: ``int``, ``int | None``."""
    return hint is int or (get_origin(hint) in (Union, types.UnionType) and int in get_args(hint))


_INTEGERS = frozenset(name for name, hint in get_type_hints(SamplingParams).items() if _takes_integers(hint))
TEXT_PARAMS = frozenset(name for name, hint in get_type_hints(SamplingParams).items() if str in get_args(hint))
"""Parameters that are texts, or lists of them."""
_JSON_OR_TEXT = frozenset({"logit_bias", "structured_outputs"})
"""Parameters that may be given as JSON text wherever they may be given as a value."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a row failed: the class of the error, for counting, and a message for people."""

    error_class: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """From an exception."""
        # A message may quote text that is no Unicode (halves of surrogate pairs); columns hold Unicode only.
        message = str(error).encode("utf-8", "backslashreplace").decode()
        return cls(error_class=type(error).__name__, message=message or type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A text that was scored after a row's prompt; ``logprob``: of all its tokens together, in nats."""

    label: str
    probability: float
    logprob: float
    tokens: int

    @property
    def mean_logprob(self) -> float:
        """Of a token."""
        return self.logprob / self.tokens


def best_choice(choices: Sequence[Choice]) -> Choice:
    """The most probable one, the first of equal ones."""
    return max(choices, key=lambda own: own.logprob)


def scored_choices(labels: Sequence[str], scored: Sequence[Generation]) -> tuple[Choice, ...]:
    """The choices of a row with their probabilities: the softmax over their log-probabilities."""
    sums = [math.fsum(one.logprobs or ()) for one in scored]
    best = max(sums, default=0.0)
    weights = [1.0 if value == best else math.exp(value - best) for value in sums]
    total = math.fsum(weights)
    return tuple(
        Choice(label=label, probability=weight / total, logprob=value, tokens=len(one.token_ids))
        for label, weight, value, one in zip(labels, weights, sums, scored, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """The result of one input row: its generations in sample order, or a failure (then no generations).

    ``choices``: texts that were scored after its prompt. Where nothing is generated, the best is its generation.
    """

    row_id: str
    params: SamplingParams | None = None
    generations: tuple[Generation, ...] = ()
    choices: tuple[Choice, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Conversation(Generation):
    """The last turn of a conversation; its prompt tokens, stats and timings are those of all turns together.

    Attributes:
        messages: all messages; the answers are without their reasoning.
        turns: the generations of all turns.
    """

    messages: Sequence[Mapping[str, str]]
    turns: Sequence[Generation]

    @property
    def evidence(self) -> Any:
        """Evidence for or against the last turn."""
        return self.turns[-1].evidence


def params_of_row(base: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """``base`` with a row's own values; a null keeps the value of ``base``.

    Raises:
        RequestError: a value is out of its range, of another type, or not a sampling parameter.
    """
    unknown = sorted(set(given) - set(_PARAM_NAMES))
    if unknown:
        raise RequestError(explain("sampling_columns", unknown, f"each is one of {list(_PARAM_NAMES)}", "Rename it."))
    own = {name: _parsed(name, value) for name, value in given.items() if value is not None}
    return replace(base, **own) if own else base


def _parsed(name: str, value: Any) -> Any:
    if name == "structured_outputs" and value == {}:
        return None  # no fields: this row's output is free
    if name == "logit_bias" and isinstance(value, str):
        parsed = param_of_text(name, value)
        return parsed if isinstance(parsed, (dict, list)) else value  # refused as it is, by name
    return _integral(name, value)


def read_json(text: str | bytes) -> Any:
    """The value of JSON text in a cell.

    Raises:
        ValueError: it is not JSON, such as NaN; or an object names a key twice, so that a value would be lost.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} occurs twice in an object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)


def read_json_at(text: str, place: int) -> tuple[Any, int]:
    """The value of the JSON that begins at a place in a text, and the place after it; raises as :func:`read_json`."""
    return _DECODER.raw_decode(text, place)


def param_of_text(name: str, text: str) -> Any:
    """The value of a sampling parameter that stands as text in a column of values of any kind; no text is null."""
    if not text:
        return None
    try:
        read = read_json(text)
    except (ValueError, RecursionError):
        return text  # refused as it is, by name
    if name not in TEXT_PARAMS:
        return read
    is_texts = isinstance(read, list) and all(isinstance(item, str) for item in read)
    return read if is_texts else text


def foreign_param(name: str, value: Any) -> RequestError:
    """The error of a sampling parameter of a type that JSON lacks."""
    try:
        params_of_row(SamplingParams(), {name: value})
    except RequestError as error:
        return error
    return RequestError(explain(name, value, f"a {type(value).__name__} is none of JSON's values", "Cast the column."))


def param_fault(name: str, value: Any) -> str | None:
    """Why a sampling parameter cannot stand as JSON among values of any kind; None if it comes back as it is."""
    if name in _JSON_OR_TEXT and value != "":
        return None
    value = value.tolist() if hasattr(value, "tolist") else value
    back = param_of_text(name, value) if isinstance(value, str) else param_of_text(name, json.dumps(value, default=str))
    if back == value and isinstance(back, bool) == isinstance(value, bool):
        return None
    try:
        params_of_row(SamplingParams(), {name: value})
    except RequestError as error:
        return str(error)
    rule = "among values of other kinds it reads as a list"
    return explain(name, value, rule, f"Write a list with this text: {json.dumps([value])}.")


def _integral(name: str, value: Any) -> Any:
    # pandas and JSON tools turn a column of integers with a null into floats: 48.0 means 48.
    return int(value) if name in _INTEGERS and isinstance(value, float) and value.is_integer() else value


_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_LATER = ("min_tokens", "min_p", *_PENALTIES, "logit_bias", "suppress_tokens", "bad_words", "structured_outputs")
"""Parameters that outputs of earlier versions know nothing of."""


def plain_params(params: SamplingParams) -> dict[str, Any]:
    """Every parameter that changes the generated tokens, as plain values; later ones only where they do something.

    So an output that was begun by an earlier version goes on, and has the same hashes.
    """
    plain = {k: v for k, v in asdict(params).items() if k not in _LATER or v != _DEFAULTS[k]}
    if params.structure is not None:
        plain["structured_outputs"] = params.structure.as_dict()
    # 1 == True, but it asks for more.
    return plain | ({"top_logprobs": params.top_logprobs} if params.top_logprobs else {})


def params_hash(params: SamplingParams) -> str:
    """A hash (16 hex digits) of all sampling parameters but the seed, which has a column of its own."""
    return _params_hash(params, params.top_logprobs)


@functools.lru_cache(maxsize=4096)
def _params_hash(params: SamplingParams, top_logprobs: int) -> str:
    plain = {k: v for k, v in plain_params(params).items() if k != "seed"}
    return hashlib.blake2b(json.dumps(plain, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def make_requests(
    key: str, row_id: str, token_ids: Sequence[int], params: SamplingParams, run_seed: int
) -> list[Request]:
    """The ``params.n`` requests of one row.

    Args:
        key: unique among unfinished requests of the engine; sample numbers are appended.
        row_id: identity of the row; with ``run_seed`` it decides the noise, unless ``params.seed`` is set.
        token_ids: the prompt.
        params: of this row.
        run_seed: of the run.
    """
    prompt = tuple(token_ids)
    return [
        Request(
            request_id=f"{key}/{sample}",
            prompt_token_ids=prompt,
            params=params,
            seed=row_seed(run_seed, row_id, sample) if params.seed is None else sample_seed(params.seed, sample),
            sample_index=sample,
        )
        for sample in range(params.n)
    ]


def scored_requests(
    key: str, token_ids: Sequence[int], params: SamplingParams, continuations: Sequence[Sequence[int]]
) -> list[Request]:
    """The requests that score texts after the prompt of a row; arguments as of :func:`make_requests`."""
    prompt = tuple(token_ids)
    return [
        Request(request_id=f"{key}/score{place}", prompt_token_ids=prompt, params=params, continuation=tuple(ids))
        for place, ids in enumerate(continuations)
    ]


def output_arrays(
    rows: Sequence[RowResult], fields_: Sequence[pa.Field], prefix: str, model: str, retry: int | None = None
) -> list[pa.Array]:
    """One array per output field: a value for each generation of each row, and one for each failed row."""
    owners = [row for row in rows for _ in range(max(1, len(row.generations)))]
    done = [g for row in rows for g in (row.generations or (None,))]
    hashes = {id(row.params): None if row.params is None else params_hash(row.params) for row in owners}
    strategies = {id(row.params): None if row.params is None else str(row.params.strategy) for row in owners}
    of_row: dict[str, Callable[[], list[Any]]] = {
        "row_id": lambda: [row.row_id for row in owners],
        "error": lambda: [None if row.failure is None else row.failure.message for row in owners],
        "model": lambda: [model] * len(owners),
        "retry": lambda: [retry] * len(owners),
        "strategy": lambda: [strategies[id(row.params)] for row in owners],
        "params_hash": lambda: [hashes[id(row.params)] for row in owners],
        "label": lambda: [_of_best(row, "label") for row in owners],
        "logprob": lambda: [_of_best(row, "logprob") for row in owners],
        "mean_logprob": lambda: [_of_best(row, "mean_logprob") for row in owners],
        "label_probabilities": lambda: [[asdict(own) for own in row.choices] or None for row in owners],
    }
    arrays = []
    for field_ in fields_:
        name = field_.name.removeprefix(prefix)
        if name in of_row:
            arrays.append(pa.array(of_row[name](), field_.type))
        elif pa.types.is_struct(field_.type):
            arrays.append(_struct_array(_of_generations(name, done), field_.type))
        else:
            values = _VALUES[name](done) if name in _VALUES else _of_generations(name, done)
            arrays.append(pa.array(values, field_.type))
    return arrays


def _of_best(row: RowResult, name: str) -> Any:
    """An attribute of the most probable text that was scored; None where none was."""
    return None if not row.choices else getattr(best_choice(row.choices), name)


def _of_generations(name: str, done: Sequence[Generation | None]) -> list[Any]:
    """An attribute of each generation; None where there is none."""
    read = attrgetter(name)
    return [None if g is None else read(g) for g in done]


_VALUES: Mapping[str, Callable[[Sequence[Generation | None]], list[Any]]] = {
    "sample_index": lambda done: [0 if g is None else g.sample_index for g in done],
    "finish_reason": lambda done: [(FinishReason.ERROR if g is None else g.finish_reason).value for g in done],
    "completion_tokens": lambda done: [None if g is None else _completion_tokens(g) for g in done],
    "messages": lambda done: [getattr(g, "messages", None) for g in done],
}
"""Columns that are not plain attributes of a generation."""


def _completion_tokens(generation: Generation) -> int:
    turns = generation.turns if isinstance(generation, Conversation) else (generation,)
    return sum(len(turn.token_ids) for turn in turns)


def _struct_array(values: Sequence[Any], kind: pa.StructType) -> pa.Array:
    """Attributes of objects as a struct column; null where there is no object."""
    children = [kind.field(i) for i in range(kind.num_fields)]
    arrays = []
    for child in children:
        read = attrgetter(child.name)
        arrays.append(pa.array([None if value is None else read(value) for value in values], child.type))
    absent = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=children, mask=absent)


def dead_arrays(
    rows: Sequence[RowResult], raw: Sequence[str | None], fields_: Sequence[pa.Field], prefix: str, attempt: int
) -> list[pa.Array]:
    """One array per dead-letter field of failed rows; ``raw``: the text of a row that did not fit its columns."""
    failures = [row.failure or Failure(error_class="", message="") for row in rows]
    values: Mapping[str, Sequence[Any]] = {
        "row_id": [row.row_id for row in rows],
        "error_class": [failure.error_class for failure in failures],
        "error": [failure.message for failure in failures],
        "attempt": [attempt] * len(rows),
        "raw": raw,
    }
    return [pa.array(values[f.name.removeprefix(prefix)], f.type) for f in fields_]
