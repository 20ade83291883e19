"""SQL expressions over the columns of a table, evaluated by DuckDB, one row at a time as far as the user can tell.

An expression sees its own row and nothing else: no sub-query, no aggregate, no window, no file, no setting, no clock
and no chance. So its value is the same whenever it is computed, and the text may come from anybody.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    import duckdb


def column_names(schema: pa.Schema) -> list[str]:
    """The names of all columns, each followed by those of its fields, dotted."""
    return [name for field in schema for name in _names(field, field.name)]


def _names(field: pa.Field, name: str) -> Iterator[str]:
    yield name
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _names(inner, f"{name}.{inner.name}")


def find_column(schema: pa.Schema, path: Sequence[str], setting: str) -> tuple[str, ...]:
    """The names in ``path`` as they are spelled in the schema; upper and lower case are the same, as in SQL.

    Raises:
        ConfigError: there is none; the message has the names most like it.
    """
    found: list[str] = []
    fields = list(schema)
    for name in path:
        same = [field for field in fields if field.name == name]
        same = same or [field for field in fields if field.name.lower() == name.lower()]
        if not same:
            raise ConfigError(_absent(schema, path, found, setting))
        found.append(same[0].name)
        fields = list(same[0].type) if pa.types.is_struct(same[0].type) else []
    return tuple(found)


def values_of(table: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """The values at a path that :func:`find_column` gave."""
    first, *inside = path
    return pc.struct_field(table[first], inside) if inside else table[first]


def _absent(schema: pa.Schema, path: Sequence[str], found: Sequence[str], setting: str) -> str:
    wanted, every = ".".join(path), column_names(schema)
    near = difflib.get_close_matches(wanted, every, n=3, cutoff=0.6)
    near += [name for name in every if name.rsplit(".", 1)[-1] == path[-1] and name not in near]
    if near:
        remedy = f"Near it: {', '.join(near)}."
    else:
        inside = [name for name in every if name.startswith(".".join(found) + ".")] if found else schema.names
        remedy = f"There are: {', '.join(inside or schema.names)}."
    return f"{setting}: the output has no column {wanted!r}. {remedy}"


_CLASSES = frozenset({"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT",
                      "FUNCTION", "LAMBDA", "LAMBDA_REF", "OPERATOR", "TYPE"})  # fmt: skip
_REFUSED = {
    "SUBQUERY": "a sub-query",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
}
_SETTINGS = (
    "enable_external_access=false",
    "python_enable_replacements=false",
    "autoinstall_known_extensions=false",
    "autoload_known_extensions=false",
    "memory_limit='256MB'",
    "threads=1",
    "lock_configuration=true",
)


class Expression:
    """An expression over the columns of a schema.

    Attributes:
        text: as it was given.
        is_boolean, is_number: the kind of its values.
    """

    def __init__(self, text: str, schema: pa.Schema, setting: str) -> None:
        """Parse and check it.

        Raises:
            ConfigError: it is no expression over one row of these columns.
            ResourceError: DuckDB is not installed.
        """
        self.text = text
        self._about = f"{setting}={text!r}"
        self._connection = _connection(setting)
        tree = self._parse()
        self._check(tree, schema)
        kind = self._values(schema.empty_table()).type
        self.is_boolean = pa.types.is_boolean(kind)
        self.is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """One value for each row; null where it has none, as where it divides by a text."""
        return self._values(table)

    def _values(self, table: pa.Table) -> pa.ChunkedArray:
        import duckdb

        try:
            self._connection.register("rows", table)
            found = self._connection.sql(f"SELECT TRY(({self.text}\n)) AS value FROM rows").to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(f"{self._about}: {_first_line(error)}. Correct the expression.") from None
        finally:
            self._connection.unregister("rows")
        return found["value"]

    def _parse(self) -> Any:
        import duckdb

        try:
            ((parsed,),) = self._connection.execute(
                "SELECT json_serialize_sql(?)", [f"SELECT ({self.text}\n)"]
            ).fetchall()
        except duckdb.Error as error:
            raise ConfigError(f"{self._about}: {_first_line(error)}. Write an SQL expression.") from None
        tree = json.loads(parsed)
        if tree["error"]:
            raise ConfigError(f"{self._about}: {tree['error_message']}. Write an SQL expression, such as "
                              "evidence.worst_logprob > -3 and finish_reason = 'stop'.")  # fmt: skip
        nodes = [statement["node"] for statement in tree["statements"]]
        if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE" or len(nodes[0]["select_list"]) != 1:
            raise ConfigError(f"{self._about}: not one expression. Join conditions with 'and' or 'or'.")
        return nodes[0]["select_list"][0]

    def _check(self, tree: Any, schema: pa.Schema) -> None:
        nodes = list(_nodes(tree))
        bound = {name for node in nodes if node["class"] == "LAMBDA" for name in _parameters(node)}
        for node in nodes:
            kind = node["class"]
            if kind not in _CLASSES:
                raise ConfigError(f"{self._about}: {_REFUSED.get(kind, kind.lower())} is not an expression over one "
                                  "row. Leave it out.")  # fmt: skip
            if kind == "FUNCTION":
                self._check_function(node["function_name"])
            if kind == "COLUMN_REF" and node["column_names"][0] not in bound:
                find_column(schema, node["column_names"], self._about)

    def _check_function(self, name: str) -> None:
        known = self._connection.execute(
            "SELECT DISTINCT function_type, stability FROM duckdb_functions() WHERE function_name = ?", [name]
        ).fetchall()
        kinds = {kind for kind, _ in known}
        if kinds & {"aggregate", "window"} and "scalar" not in kinds:
            raise ConfigError(f"{self._about}: {name} looks at several rows. An expression sees one row; use "
                              '"best 50%", with `by` for groups.')  # fmt: skip
        if any(stability not in (None, "CONSISTENT") for _, stability in known):
            raise ConfigError(f"{self._about}: the value of {name} may differ from one time to the next. Leave it out.")


def _connection(setting: str) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise ResourceError(
            f'{setting}: expressions need DuckDB, which is not installed. pip install "wedlm-batch[filter]"'
        ) from error
    connection = duckdb.connect(":memory:")
    for option in _SETTINGS:
        connection.execute(f"SET {option}")
    return connection


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of the parsed expression."""
    if isinstance(tree, dict):
        if "class" in tree and "type" in tree:
            yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _parameters(node: dict[str, Any]) -> Iterator[str]:
    """Names that a lambda binds: the columns on its left side."""
    return (inner["column_names"][0] for inner in _nodes(node["lhs"]) if inner["class"] == "COLUMN_REF")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(" Error: ")[2].rstrip(".!")
