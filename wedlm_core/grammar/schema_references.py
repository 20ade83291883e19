"""The parts of a schema: their places, and the parts that references stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from wedlm_core.errors import RequestError, explain
from wedlm_core.json_pointer import part_at

_GROUPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties", "not")


@dataclass(frozen=True)
class Place:
    """A part of a schema as it is read.

    Attributes:
        part: of the schema.
        path: pointer from the whole schema, or from the definition that a reference led to.
        depth: schemas around it on that path.
        draft: number of the draft that it is written in; None where none is named.
    """

    part: Any
    path: str = ""
    depth: int = 0
    draft: int | None = None

    def inside(self, pointer: str, part: Any) -> Place:
        """The place of a part directly inside of this one."""
        return Place(part, f"{self.path}/{pointer}", self.depth + 1, self.draft)

    def require(self, ok: bool, keyword: str, rule: str, remedy: str = "Correct it.", **given: object) -> None:
        """Raise RequestError unless ``ok``: the rule that a keyword breaks, by its own value or another ``value``."""
        if not ok:
            value = given["value"] if given else self.part.get(keyword)
            raise RequestError(explain(f"structured_outputs.json#{self.path}/{keyword}", value, rule, remedy))


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Pointers and values of the schemas directly inside of a schema, definitions included."""
    for keyword in _GROUPS:
        group = schema.get(keyword)
        for name, part in group.items() if isinstance(group, Mapping) else ():
            if keyword != "dependencies" or not isinstance(part, list):
                yield f"{keyword}/{name}", part
    for keyword in _LISTS:
        parts = schema.get(keyword)
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            yield f"{keyword}/{number}", part
    for keyword in _SINGLE:
        if keyword in schema and not isinstance(schema[keyword], list):
            yield keyword, schema[keyword]


def definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The targets of references in a schema in canonical form, by reference."""
    return {"#": schema} | {f"#/$defs/{name}": part for name, part in schema.get("$defs", {}).items()}


class References:
    """Finds the targets of references. Each lies in the whole schema: nothing is read from elsewhere.

    A part with an ``$id`` of its own, or an ``id`` in older drafts, is a document of its own. It is read as a part of
    the whole, if it holds no references and no reference names it.
    """

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole = whole
        self._base = _name_of(whole)
        self._anchors: dict[str, Any] = {}
        self._embedded: set[int] = set()  # parts inside of documents of their own
        todo: list[tuple[Any, bool]] = [(whole, False)]
        while todo:
            part, embedded = todo.pop()
            if not isinstance(part, Mapping):
                continue
            name = _name_of(part)
            embedded |= part is not whole and bool(name) and not name.startswith("#")
            for anchor in (part.get("$anchor"), name[1:] if name.startswith("#") else None):
                if isinstance(anchor, str) and anchor and not embedded:
                    self._anchors.setdefault(anchor, part)
            if embedded:
                self._embedded.add(id(part))
            todo.extend((inner, embedded) for _, inner in subschemas(part))

    def target(self, schema: Mapping[str, Any]) -> Any:
        """The part that the ``$ref`` of a schema stands for.

        Raises:
            ValueError: it leads nowhere, or out of the schema.
        """
        reference = schema["$ref"]
        if not isinstance(reference, str):
            raise ValueError("a reference is a string")
        if id(schema) in self._embedded:
            raise ValueError("it stands in a part that has an $id of its own")
        document, _, fragment = urljoin(self._base, reference).partition("#") if reference else ("", "", "")
        if not reference.startswith("#") and document != self._base.partition("#")[0]:
            raise ValueError("it leads out of the schema")
        fragment = unquote(reference[1:] if reference.startswith("#") else fragment)
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise ValueError("it leads nowhere")
            return self._anchors[fragment]
        return part_at(self._whole, fragment.removesuffix("/") if fragment == "/" else fragment)


def _name_of(schema: Mapping[str, Any]) -> str:
    name = schema.get("$id", schema.get("id", ""))
    return name if isinstance(name, str) else ""
