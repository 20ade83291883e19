"""The canonical form of a JSON schema: the fewest keywords of the newest draft, read by the backend as by validators.

Annotations are gone, so the backend takes no options from them. References lead to ``$defs`` alone. Bounds of numbers
are closed. Formats that the backend takes too widely are narrowed by patterns. Keywords that the backend does not
have are expressed by others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from wedlm_core.grammar.keywords import DRAFTS, FORMATS, HOLDS_BESIDE_REFERENCES, draft_name
from wedlm_core.grammar.patterns import closed_names, with_python_classes
from wedlm_core.grammar.schema_bounds import exact_bounds, shorter_numbers
from wedlm_core.grammar.schema_references import Place, References, definitions
from wedlm_core.grammar.unions import Comparison, needs_tag, negation

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_MOST_EXCLUDED = 1_000  # pairs of parts of a union: each is two schemas more
_AS_THEY_ARE = ("type", "enum", "const", "required")
_BY_NAME = ("properties", "patternProperties")


def canonical(schema: Mapping[str, Any], references: References, check: Callable[[Place], None]) -> dict[str, Any]:
    """The canonical form of a schema; ``check`` is called with each part before it is read.

    Raises:
        RequestError: it names an unknown draft; a reference leads nowhere; it has a ``not`` without an equivalent in
            other keywords, or a ``oneOf`` with parts that older drafts cannot tell apart; or ``check`` raised it.
    """
    return _Canonical(schema, references, check).made()


class _Canonical:
    def __init__(self, whole: Mapping[str, Any], references: References, check: Callable[[Place], None]) -> None:
        self._whole, self._references, self._check = whole, references, check
        self._names: dict[int, str] = {}
        self._todo: list[tuple[str, Place]] = []
        self._unions: list[tuple[Place, dict[str, Any]]] = []  # with oneOf, and their new form
        self._is_older, self._has_more = False, False  # a draft up to 7, and keywords next to $ref, which it ignores

    def made(self) -> dict[str, Any]:
        root = self._schema(Place(self._whole))
        named: dict[str, Any] = {}
        while self._todo:
            name, target = self._todo.pop()
            named[name] = self._schema(target)
        root |= {"$defs": named} if named else {}
        is_wider = self._is_older and self._has_more
        comparison = Comparison(definitions(root), references_alone=is_wider)
        for place, union in self._unions:
            place.require(_open_union(union, comparison) or not is_wider, "oneOf", 'its parts cannot be told apart by '
                          'their "$ref" alone, and this draft ignores the keywords next to it',
                          'Write {"allOf": [{"$ref": ...}, {...}]}, or name draft 2019-09 or a newer one.')  # fmt: skip
        return root

    def _schema(self, place: Place) -> Any:
        part = place.part
        if isinstance(part, bool):
            return part
        if isinstance(part, Mapping) and "$schema" in part:
            name = draft_name(part["$schema"])
            place.require(name in DRAFTS, "$schema", "no known draft of JSON schema",
                          'Use "https://json-schema.org/draft/2020-12/schema", or remove it.')  # fmt: skip
            place = replace(place, draft=DRAFTS[name])
        self._check(place)
        self._is_older |= (place.draft or HOLDS_BESIDE_REFERENCES) < HOLDS_BESIDE_REFERENCES
        made: dict[str, Any] = {}
        more: list[Any] = []
        for keyword, value in part.items():
            if keyword in _AS_THEY_ARE:
                made[keyword] = value
            elif keyword in _COUNTS:
                made[keyword] = int(value) if isinstance(value, float) and value == int(value) else value
            elif keyword in _BOUNDS:
                made.update(exact_bounds(part))
                made |= {keyword: value} if keyword == "multipleOf" else {}
            elif keyword == "$ref":
                made[keyword] = self._reference(place)
            elif keyword == "pattern":
                made[keyword] = with_python_classes(value)
            elif keyword == "format":
                first, *rest = FORMATS[value] or ({},)
                made |= {keyword: value} if keyword in first else {}
                more += rest if keyword in first else [first, *rest]
            elif keyword in ("anyOf", "oneOf", "allOf"):
                made[keyword] = self._listed(place, keyword)
            elif keyword == "discriminator" and needs_tag(part, self._references):
                more.append({"required": [value["propertyName"]]})
            elif keyword == "not":
                more.append(self._negation(place))
            elif keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
                more += self._dependencies(place, keyword)
            elif keyword in _BY_NAME:
                made[keyword] = {
                    with_python_classes(name) if keyword == "patternProperties" else name:
                        self._schema(place.inside(f"{keyword}/{name}", inner)) for name, inner in value.items()
                }  # fmt: skip
            elif keyword in ("items", "prefixItems") and isinstance(value, list):
                made["prefixItems"] = self._listed(place, keyword)
            elif keyword == "additionalItems":
                inner = self._schema(place.inside(keyword, value))
                made |= {"items": inner} if isinstance(part.get("items"), list) else {}
            elif keyword in ("items", "additionalProperties"):
                made[keyword] = self._schema(place.inside(keyword, value))
        return self._finished(place, made, more)

    def _finished(self, place: Place, made: dict[str, Any], more: list[Any]) -> dict[str, Any]:
        """A part with the schemas that hold as well, its place noted where it is a union."""
        if "patternProperties" in made:
            made = closed_names(made)
        made = _joined(_with_shorter_numbers(made), more)
        if "oneOf" in made:
            self._unions.append((place, made))
        self._has_more |= "$ref" in made and len(made) > 1
        return made

    def _listed(self, place: Place, keyword: str) -> list[Any]:
        parts = place.part[keyword]
        return [self._schema(place.inside(f"{keyword}/{number}", part)) for number, part in enumerate(parts)]

    def _reference(self, place: Place) -> str:
        try:
            target = self._references.target(place.part)
        except ValueError as error:
            place.require(False, "$ref", f"{error}", 'Refer to parts by "$ref": "#/$defs/...".')
            raise
        if target is self._whole:
            return "#"
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = str(len(self._names))
            path = str(place.part["$ref"]).partition("#")[2].rstrip("/")
            self._todo.append((name, Place(target, path, 0, place.draft)))
        return f"#/$defs/{name}"

    def _negation(self, place: Place) -> Any:
        made = self._schema(place.inside("not", place.part["not"]))
        try:
            return negation(made)
        except ValueError:
            place.require(False, "not", "this not would not be enforced",
                          'State the allowed values with "enum", "anyOf" or "pattern".')  # fmt: skip
            raise

    def _dependencies(self, place: Place, keyword: str) -> Iterator[dict[str, Any]]:
        """Either a field is not there, or other fields are, or a schema holds."""
        for name, needed in place.part[keyword].items():
            if isinstance(needed, list):
                present: dict[str, Any] = {"required": [name, *needed]}
            else:
                inner = self._schema(place.inside(f"{keyword}/{name}", needed))
                present = {"properties": {name: True}, "required": [name], "allOf": [inner]}
            yield {"anyOf": [{"properties": {name: False}}, present]}


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
