"""Prompt templates: Jinja over a row's columns, sandboxed. Knows no Arrow and no tokenizer."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn

from jinja2 import StrictUndefined, UndefinedError, meta, nodes, pass_context
from jinja2.visitor import NodeTransformer

from pipeline.codec import BoundedEnvironment, BoundedTemplate, TemplateSyntaxError, explain
from pipeline.errors import ConfigError

_NUMERAL = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


class NullCellError(UndefinedError):
    """A template writes a null cell, or computes with it."""


class NullCell(StrictUndefined):
    """A null or NaN in a cell: false, equal to None, replaced by ``default``; anything else raises NullCellError.

    Computing with it is a TypeError, as with None, that names the cell.
    """

    __slots__ = ("_is_null", "_why")

    def __init__(self, why: str, *, is_null: bool) -> None:
        self._is_null, self._why = is_null, why
        super().__init__(hint=why, exc=NullCellError)

    def __getattr__(self, name: str) -> NullCell:
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks for protocols by such names
        return self[name]

    def __getitem__(self, key: Any) -> NullCell:  # type: ignore[override]
        return NullCell(f"{self._why.partition(', so it')[0]}, so it has no {key!r}", is_null=self._is_null)

    def __bool__(self) -> bool:  # type: ignore[override]
        return False

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return other is None or isinstance(other, NullCell)

    def __ne__(self, other: object) -> bool:  # type: ignore[override]
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(None)

    def __repr__(self) -> str:
        return str(self)  # which raises: a list with it has no text either

    def _no_number(self, *others: Any) -> NoReturn:
        raise TypeError(self._why)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_number
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = _no_number
    __abs__ = __round__ = __index__ = _no_number


class NumberText(str):
    """A text cell that is the digits of a number: a column of numbers is text if one of its cells is no number.

    It is a text like any other, but comparing it or computing with a number is an error that names the cell: it is
    equal to no number, and a product would repeat the text.
    """

    __slots__ = ("_place",)
    _place: str

    def __new__(cls, text: str, place: str = "") -> NumberText:
        """``place``: of the cell."""
        own = super().__new__(cls, text)
        own._place = place
        return own

    __hash__ = str.__hash__


def _refusing_numbers(name: str) -> Callable[[NumberText, Any], Any]:
    """A method of text that takes no number."""
    plain = getattr(str, name, None)

    def method(self: NumberText, other: Any) -> Any:
        if isinstance(other, Real):
            raise TypeError(
                f"column {self._place!r} is text, {self[:80]!r}, and no number, as {other!r} is. "
                f"Write {self._place}|int or {self._place}|float"
            )
        return NotImplemented if plain is None else plain(self, other)

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
              "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow"):  # fmt: skip
    setattr(NumberText, f"__{_name}__", _refusing_numbers(f"__{_name}__"))


class _MissingCell(StrictUndefined):
    """A name that a row, or a mapping of it, lacks; ``range`` of it names the column too."""

    __slots__ = ()

    def __index__(self) -> int:
        return len(self)  # which raises

    def __repr__(self) -> str:
        return str(self)  # which raises: a list with it has no text either


class _Fields(dict[Any, Any]):
    """A mapping of a row; a field that it lacks is an error that names its place."""

    __slots__ = ("_place",)

    def __init__(self, place: str, fields: Mapping[Any, Any]) -> None:
        super().__init__({name: _cell(_below(place, name), value) for name, value in fields.items()})
        self._place = place

    def __missing__(self, name: Any) -> StrictUndefined:
        return _MissingCell(hint=f"column {_below(self._place, name)!r} is missing", exc=NullCellError)

    def get(self, name: Any, default: Any = None) -> Any:
        """The field; without a default of the caller, a missing one is an error once it is used."""
        return self[name] if name in self or default is None else default


@dataclass(frozen=True)
class JsonText:
    """A list or an object in a column of text. A template reads its parts, and writes it as its text.

    Attributes:
        text: as it was written.
        value: the list or object.
    """

    text: str
    value: list[Any] | Mapping[Any, Any]


class _WrittenList(list[Any]):
    __slots__ = ("_text",)
    _text: str

    def __str__(self) -> str:
        return self._text


class _WrittenFields(_Fields):
    __slots__ = ("_text",)
    _text: str

    def __str__(self) -> str:
        return self._text


def _written(place: str, cell: JsonText) -> _WrittenList | _WrittenFields:
    found: _WrittenList | _WrittenFields
    if isinstance(cell.value, Mapping):
        found = _WrittenFields(place, cell.value)
    else:
        found = _WrittenList(_cell(f"{place}[{i}]", item) for i, item in enumerate(cell.value))
    found._text = cell.text
    return found


class RowEnvironment(BoundedEnvironment):
    """The environment of prompt templates: no null has a text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, undefined=_MissingCell)
        self.finalize = _not_null
        self.filters |= {name: _of_a_value(self.filters[name]) for name in _PASS_NULLS}
        self.tests["none"] = lambda value: value is None or isinstance(value, NullCell)
        self.policies["json.dumps_kwargs"] = {"sort_keys": True, "default": _json_null}


def cells_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row as templates get them: a :class:`NullCell` for a null or NaN, and texts of digits marked."""
    return _Fields("", row)


def _below(place: str, name: Any) -> str:
    return f"{place}.{name}" if place else str(name)


def _cell(place: str, value: Any) -> Any:
    if value is None or (isinstance(value, Real) and value != value):
        # The table of the rows has one null for a null and for a field that a row lacks.
        null = "null" if "." in place or "[" in place else "null, or missing in this row"
        return NullCell(f"column {place!r} is {null if value is None else 'NaN'}", is_null=value is None)
    if isinstance(value, JsonText):
        return _written(place, value)
    if isinstance(value, Mapping):
        return _Fields(place, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_cell(f"{place}[{i}]", item) for i, item in enumerate(value))
    if isinstance(value, str) and _NUMERAL.fullmatch(value):
        return NumberText(value, place)
    return value


def _json_null(value: Any) -> None:
    """JSON has a word for null; of any other value that it lacks, the text is asked for, and of a NaN refused."""
    if not isinstance(value, NullCell):
        raise TypeError(f"a {type(value).__name__} has no JSON")
    if not value._is_null:
        str(value)


_PASS_NULLS = ("map", "select", "reject", "selectattr", "rejectattr", "items")
"""Filters of Jinja that take no value for an empty list."""


def _of_a_value(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, for which a null or missing cell is an error and no empty list."""

    @functools.wraps(plain)
    def own(*args: Any, **options: Any) -> Any:
        for value in args[:2]:  # the context of some, and the value
            if isinstance(value, StrictUndefined):
                iter(value)  # which raises
        return plain(*args, **options)

    return own


@pass_context
def _not_null(context: object, value: Any) -> Any:
    if value is None:
        raise NullCellError("an expression is null")
    if isinstance(value, bytes):
        raise TypeError(f"bytes are no text: {value[:20]!r}")
    return value


WHOLE_ROW = "row"
"""Template variable that maps column names to cells, for names that are no identifiers. A column named so wins."""
_SINGLE_BRACES = re.compile(r"(?<!\{)\{\s*([A-Za-z_]\w*)\s*\}(?!\})")


class _NoConstants(NodeTransformer):
    """Takes the constants out of a parsed template: Jinja would evaluate expressions of them as it looks for names."""

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        return nodes.ContextReference(lineno=node.lineno)


@functools.cache
def _environment() -> RowEnvironment:
    return RowEnvironment(autoescape=False, keep_trailing_newline=True)


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> tuple[BoundedTemplate, frozenset[str]]:
    """The compiled template and its free variables."""
    template = BoundedTemplate(_environment(), text)
    every = meta.find_undeclared_variables(_NoConstants().visit(_environment().parse(text)))
    return template, frozenset(every - set(_environment().globals))


def check_template(text: str) -> None:
    """Check a template before any row is rendered.

    Raises:
        ConfigError: ``text`` is not a template, or it uses no column: every row would have the same prompt.
    """
    if not isinstance(text, str) or not text:
        raise ConfigError(f"prompt_template={text!r}: a template is text and not empty. Write for example "
                          "'{{ question }}'.")  # fmt: skip
    try:
        _, names = _compiled(text)
    except TemplateSyntaxError as error:
        raise ConfigError(explain("prompt_template", text, f"not a Jinja template ({error})", "Correct it.")) from error
    if not names:
        braced = _SINGLE_BRACES.search(text)
        name = "question" if braced is None else braced[1]
        remedy = f"Write columns in two braces: {{{{ {name} }}}}."
        raise ConfigError(
            explain("prompt_template", text, "it uses no column, so all rows get the same prompt", remedy)
        )


class PromptTemplate:
    """A compiled template.

    Attributes:
        text: its source.
        names: its free variables, :data:`WHOLE_ROW` included if it is used.
    """

    def __init__(self, text: str) -> None:
        check_template(text)
        self.text = text
        self._template, self.names = _compiled(text)

    @property
    def takes_whole_row(self) -> bool:
        """Whether it uses ``row``."""
        return WHOLE_ROW in self.names

    def render(self, row: Mapping[str, Any]) -> str:
        """The prompt of a row. The template may test or replace a cell that is null, missing or NaN, but not write it.

        Raises:
            NullCellError: the template uses such a cell otherwise.
            TemplateLimitError: it is too long.
            Exception: whatever Jinja or an expression of the template raises.
        """
        cells = cells_of(row)
        return self._template.render({WHOLE_ROW: cells, **cells} if self.takes_whole_row else cells)
