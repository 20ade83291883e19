"""The canonical form of a JSON schema: the fewest keywords of the newest draft, read by the backend as by validators.

Annotations are gone, so the backend takes no options from them. References lead to ``$defs`` alone. Bounds of numbers
are closed. Formats that the backend takes too widely are narrowed by patterns. Keywords that the backend does not
have are expressed by others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from wedlm_core.grammar.discriminators import needs_tag
from wedlm_core.grammar.disjoint import Comparison
from wedlm_core.grammar.field_names import closed_names
from wedlm_core.grammar.formats import format_rules
from wedlm_core.grammar.keywords import HOLDS_BESIDE_REFERENCES, draft_of
from wedlm_core.grammar.negation import negation
from wedlm_core.grammar.patterns import with_python_classes
from wedlm_core.grammar.schema_bounds import exact_bounds, shorter_numbers
from wedlm_core.grammar.schema_references import References, definitions

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MOST_EXCLUDED = 1_000  # pairs of parts of a union: each is two schemas more
_AS_THEY_ARE = ("type", "enum", "const", "required")


class NotExpressedError(ValueError):
    """No other keywords express the ``not`` or the ``oneOf`` of a part.

    Attributes:
        part: the schema with the keyword.
        keyword: it.
    """

    def __init__(self, part: Mapping[str, Any], keyword: str) -> None:
        super().__init__(f"no other keywords express this {keyword}")
        self.part, self.keyword = part, keyword


def canonical(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical form of a schema that :func:`wedlm_core.grammar.schemas.check_schema` takes.

    Raises:
        NotExpressedError: it has a ``not`` without an equivalent in other keywords, or a ``oneOf`` with parts that
            older drafts cannot tell apart.
    """
    return _Canonical(schema).made()


class _Canonical:
    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole, self._references = whole, References(whole)
        self._names: dict[int, str] = {}
        self._todo: list[tuple[str, Any]] = []
        self._unions: list[tuple[Mapping[str, Any], dict[str, Any]]] = []  # with oneOf, and their new form
        self._is_older, self._has_more = False, False  # a draft up to 7, and keywords next to $ref, which it ignores

    def made(self) -> dict[str, Any]:
        root = self._schema(self._whole)
        named: dict[str, Any] = {}
        while self._todo:
            name, target = self._todo.pop()
            named[name] = self._schema(target)
        root |= {"$defs": named} if named else {}
        is_wider = self._is_older and self._has_more
        comparison = Comparison(definitions(root), references_alone=is_wider)
        for part, union in self._unions:
            if not _open_union(union, comparison) and is_wider:
                raise NotExpressedError(part, "oneOf")
        return root

    def _schema(self, part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        made: dict[str, Any] = {}
        more: list[Any] = []
        self._is_older |= (draft_of(part) or HOLDS_BESIDE_REFERENCES) < HOLDS_BESIDE_REFERENCES
        for keyword, value in part.items():
            if keyword in _AS_THEY_ARE:
                made[keyword] = value
            elif keyword in _COUNTS:
                made[keyword] = int(value) if isinstance(value, float) and value == int(value) else value
            elif keyword in _BOUNDS:
                made.update(exact_bounds(part))
                made |= {keyword: value} if keyword == "multipleOf" else {}
            elif keyword == "$ref":
                made[keyword] = self._reference(part)
            elif keyword == "pattern":
                made[keyword] = with_python_classes(value)
            elif keyword == "format":
                more.extend(self._format(value, made))
            elif keyword in ("anyOf", "oneOf", "allOf"):
                made[keyword] = [self._schema(option) for option in value]
            elif keyword == "discriminator" and needs_tag(part, self._references):
                more.append({"required": [value["propertyName"]]})
            elif keyword == "not":
                more.append(self._negation(part))
            elif keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
                more.extend(self._dependency(name, needed) for name, needed in value.items())
            elif keyword in ("properties", "items", "prefixItems", "additionalProperties", "patternProperties"):
                made.update(self._children(keyword, part))
        if "patternProperties" in made:
            made = closed_names(made)
        made = _with_shorter_numbers(made)
        made = _joined(made, more) if more else made
        if "oneOf" in made:
            self._unions.append((part, made))
        self._has_more |= "$ref" in made and len(made) > 1
        return made

    def _reference(self, part: Mapping[str, Any]) -> str:
        target = self._references.target(part)
        if target is self._whole:
            return "#"
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = str(len(self._names))
            self._todo.append((name, target))
        return f"#/$defs/{name}"

    def _negation(self, part: Mapping[str, Any]) -> Any:
        try:
            return negation(self._schema(part["not"]))
        except ValueError as error:
            raise NotExpressedError(part, "not") from error

    def _format(self, name: str, made: dict[str, Any]) -> Sequence[Any]:
        first, *rest = format_rules(name) or ({},)
        if "format" not in first:
            return [first, *rest]
        made["format"] = name
        return rest

    def _children(self, keyword: str, part: Mapping[str, Any]) -> dict[str, Any]:
        value = part[keyword]
        if keyword == "properties":
            return {keyword: {name: self._schema(inner) for name, inner in value.items()}}
        if keyword == "patternProperties":
            return {keyword: {with_python_classes(name): self._schema(inner) for name, inner in value.items()}}
        if not isinstance(value, list):
            return {keyword: self._schema(value)}
        made: dict[str, Any] = {"prefixItems": [self._schema(inner) for inner in value]}
        if keyword == "items" and "additionalItems" in part:
            made["items"] = self._schema(part["additionalItems"])
        return made

    def _dependency(self, name: str, needed: Any) -> dict[str, Any]:
        """Either a field is not there, or other fields are, or a schema holds."""
        if isinstance(needed, list):
            present: dict[str, Any] = {"required": [name, *needed]}
        else:
            present = {"properties": {name: True}, "required": [name], "allOf": [self._schema(needed)]}
        return {"anyOf": [{"properties": {name: False}}, present]}


def _with_shorter_numbers(made: dict[str, Any]) -> dict[str, Any]:
    bounds: dict[str, float] = {keyword: made[keyword] for keyword in ("minimum", "maximum") if keyword in made}
    shorter = [] if made.get("type") == "integer" else shorter_numbers(bounds)
    if not shorter:
        return made
    rest = {keyword: value for keyword, value in made.items() if keyword not in bounds}
    if rest == {"type": "number"}:
        return {"anyOf": [made, {"enum": shorter}]}
    return _joined(rest, [{"anyOf": [bounds, {"enum": shorter}]}])


def _joined(made: Mapping[str, Any], more: list[Any]) -> dict[str, Any]:
    """A schema with others that hold as well."""
    if not more:
        return dict(made)
    return {"allOf": [made, *more]} if "allOf" in made else {**made, "allOf": more}


def _open_union(union: dict[str, Any], comparison: Comparison) -> bool:
    """Replace ``oneOf`` by ``anyOf`` where at most one part holds, if need be by excluding the others from each part.

    The parts are compared together with the keywords that they stand with. False if ``oneOf`` is left to the backend.
    """
    parts = union["oneOf"]
    rest = {keyword: value for keyword, value in union.items() if keyword != "oneOf"}
    try:
        made = [_excluding(part, others) for part, others in zip(parts, _near(parts, rest, comparison), strict=True)]
    except ValueError:
        return False  # the backend may tell them apart, or refuses them
    order = list(union.items())
    union.clear()
    for keyword, value in order:
        if keyword != "oneOf":
            union[keyword] = value
        elif "anyOf" not in rest:
            union["anyOf"] = made
    if "anyOf" in rest:
        union["allOf"] = [*rest.get("allOf", ()), {"anyOf": made}]
    return True


def _near(parts: list[Any], rest: Mapping[str, Any], comparison: Comparison) -> list[list[Any]]:
    """For each part of a union the other ones that may have a value in common with it.

    Raises:
        ValueError: there are too many.
    """
    near: list[list[Any]] = [[] for _ in parts]
    if comparison.have_tags([[rest, part] for part in parts]):
        return near
    found = 0
    for one, other in itertools.combinations(range(len(parts)), 2):
        if not comparison.are_disjoint([rest, parts[one]], [rest, parts[other]]):
            near[one].append(parts[other])
            near[other].append(parts[one])
            found += 1
            if found > _MOST_EXCLUDED:
                raise ValueError("too many parts")
    return near


def _excluding(part: Any, others: list[Any]) -> Any:
    """A schema with values that others do not have."""
    excluded = [negation(other) for other in others]
    return _joined(part, excluded) if isinstance(part, Mapping) else {"allOf": [part, *excluded]}
