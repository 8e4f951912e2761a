"""Ad-hoc SQL is held to an allow-list before it runs.

Two parsers read the same text: sqlglot here (`guard`), and DuckDB's own (`check_parsed`, on the output of its
``json_serialize_sql``, which does not cover PIVOT). Both check the tree against the same lists of tables and
functions, so a text that the two read differently gains nothing.

This is the first wall, and the one with clear words. The cost of a statement is not checked here: it runs in a
process of its own, on a copy, and can be killed (`server.py`).
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import ErrorLevel, Token, TokenType, exp
from sqlglot.errors import SqlglotError

from ..errors import UsageError, nearest
from .functions import FUNCTIONS, TABLE_FUNCTIONS

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of each statement that it does not know; the reader is told

MAX_DEPTH = 40  #: brackets inside brackets

_FIRST_WORDS = {"select", "with", "from", "values", "table", "describe", "desc", "summarize", "show", "pivot", "unpivot", "("}
_FIRST_HELP = "one SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE, SHOW TABLES or EXPLAIN"
#: Names of CTEs that could hide a catalog view outside their own scope.
_RESERVED = re.compile(r"(duckdb|pg|sqlite|pragma|information)_")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")

_NODES: tuple[type[Any], ...] = (
    exp.Query, exp.Values, exp.Tuple, exp.Table, exp.TableAlias, exp.CTE, exp.With, exp.From, exp.Join, exp.Where, exp.Group,
    exp.Having, exp.Qualify, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Distinct, exp.Window, exp.WindowSpec, exp.Filter,
    exp.Column, exp.Identifier, exp.Star, exp.Literal, exp.Null, exp.Boolean, exp.Alias, exp.Aliases, exp.Paren, exp.DataType,
    exp.DataTypeParam, exp.Interval, exp.Var, exp.Bracket, exp.Slice, exp.PropertyEQ, exp.Cube, exp.Rollup, exp.GroupingSets,
    exp.TableSample, exp.Describe, exp.Summarize, exp.Show, exp.Lateral, exp.JSONPath, exp.JSONPathPart, exp.Binary, exp.Unary,
    exp.Predicate, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls, exp.AtTimeZone, exp.Pivot, exp.UnpivotColumns, exp.All,
    exp.Any, exp.PivotAlias, exp.RawString, exp.Heredoc, exp.ByteString, exp.HexString, exp.UnicodeString, exp.HistoricalData, exp.Lambda,
    exp.Comprehension, exp.ColumnDef, exp.Fetch, exp.LimitOptions, exp.JSONKeyValue,
)  # fmt: skip
#: Functions for sqlglot that are syntax for DuckDB.
_SYNTAX: tuple[type[Any], ...] = (
    exp.Cast, exp.TryCast, exp.Case, exp.If, exp.And, exp.Or, exp.Xor, exp.Exists, exp.Coalesce, exp.Array, exp.Struct, exp.ToMap,
    exp.Map, exp.Extract, exp.JSONExtract, exp.JSONExtractScalar, exp.Columns, exp.RegexpLike, exp.RegexpFullMatch, exp.Unnest,
    exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Grouping, exp.ArrayContainsAll, exp.ArrayOverlaps, exp.Try,
    exp.JSONCast, exp.TsOrDsToDate, exp.DateTrunc, exp.GroupConcat, exp.ParseJSON, exp.GenerateSeries,
)  # fmt: skip
_CLASSES = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT", "FUNCTION", "LAMBDA",
    "LAMBDA_REF", "OPERATOR", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW",
}  # fmt: skip


class Unserialised(UsageError):
    """DuckDB cannot serialise the statement."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that has passed: ``text`` without its semicolon and outer comments."""

    text: str
    explain: bool  #: the plan of ``text`` is wanted, not its rows
    wrappable: bool  #: may stand in brackets as a subquery
    pivot: bool  #: contains a PIVOT, whose columns may depend on the rows
    above: int  #: lines that were given before ``text``


def guard(sql: str, tables: Collection[str]) -> Statement:
    """The statement in ``sql``, if it only reads ``tables`` by allowed functions; otherwise UsageError names the refused part."""
    if "\0" in sql:
        raise UsageError("query: contains a NUL character: remove it")
    tokens = _tokens(sql)
    explain = tokens[0].text.lower() == "explain"
    if explain:  # sqlglot takes the rest as one opaque token
        end = tokens[0].start + len("explain")
        sql = "\n" * sql.count("\n", 0, end) + sql[end:]
        tokens = _tokens(sql)
    first = tokens[0].text.lower()
    if first not in _FIRST_WORDS:
        _refuse(f"{tokens[0].text!r} can't be run here: only {_FIRST_HELP}; this endpoint only reads")
    text = sql[tokens[0].start : tokens[-1].end + 1]
    above = sql.count("\n", 0, tokens[0].start)
    wrappable = first not in ("describe", "desc", "summarize", "show")
    tree = _parse(text)
    if tree is None:  # DuckDB's parser knows more, or has a better error; the second wall checks its tree
        return Statement(text, explain, wrappable, False, above)
    _check_tree(tree, tables)
    return Statement(text, explain, wrappable, not explain and wrappable and tree.find(exp.Pivot) is not None, above)


def check_parsed(document: str, tables: Collection[str]) -> None:
    """Check DuckDB's own parse of a statement (``json_serialize_sql``) against the lists.

    Raises UsageError if it does not pass, Unserialised if DuckDB makes several statements of it.
    """
    tree = json.loads(document)
    if tree["error"]:
        message = str(tree.get("error_message", "")).split("\n", maxsplit=1)[0]
        if "Only SELECT" in message:
            raise Unserialised(f"query: only {_FIRST_HELP} can be run here; of PIVOT without IN (…), none that is explained or ordered")
        _refuse(message)
    if len(tree["statements"]) != 1:
        _refuse("one statement at a time: remove what follows the semicolon")
    nodes = list(_objects(tree["statements"]))
    names = _Names(tables, (entry["key"] for node in nodes for entry in (node.get("cte_map") or {}).get("map", ())))
    scope = {id(node["function"]) for node in nodes if node.get("type") == "TABLE_FUNCTION"}
    for node in nodes:
        kind = node.get("class")
        if kind is not None and kind not in _CLASSES:
            _refuse(f"{kind.lower()} expressions are not allowed")
        if node.get("type") in ("BASE_TABLE", "SHOW_REF") and node.get("table_name"):
            names.check_table(node["table_name"], node.get("schema_name", ""), node.get("catalog_name", ""), node.get("show_type"))
        if kind in ("FUNCTION", "WINDOW"):
            names.check_function(node["function_name"], node.get("is_operator", False), id(node) in scope)


class _Names:
    """The names allowed in a statement: our tables, and its own CTEs."""

    def __init__(self, tables: Collection[str], ctes: Iterable[str]) -> None:
        self._tables = {table.lower() for table in tables}
        self._ctes = {cte.lower() for cte in ctes}
        for cte in self._ctes:
            if _RESERVED.match(cte) or not _PLAIN.fullmatch(cte):
                _refuse(f"{cte!r} can't be the name of a WITH query: use letters, digits and '_'")

    def check_table(self, table: str, schema: str, catalog: str, show: str | None = None) -> None:
        if show is not None and table.strip('"').lower() == "tables":
            return
        if catalog or schema.lower() not in ("", "main"):
            _refuse(f"table {'.'.join(filter(None, (catalog, schema, table)))}: only the tables of 'stoker schema' can be read")
        if table.lower() not in self._tables | (self._ctes if not schema else set()):
            _refuse(f"table {table!r}: not known{nearest(table.lower(), self._tables)}; 'stoker schema' lists what can be read")

    def check_function(self, function: str, operator: bool, in_from: bool) -> None:
        name = function.lower()
        if operator and not re.search(r"[a-z]", name):
            return
        allowed = TABLE_FUNCTIONS if in_from else FUNCTIONS
        if name not in allowed:
            hint = "use it in FROM" if name in TABLE_FUNCTIONS else nearest(name, allowed).strip() or "docs/sql.md lists what can be called"
            _refuse(f"function {function}: not allowed here; {hint}")


def _refuse(message: str) -> Any:
    raise UsageError(f"query: {message}")


def _tokens(sql: str) -> list[Token]:
    """Tokens without comments and final semicolons; refuses several statements and brackets too deep for recursive parsers."""
    try:
        tokens = sqlglot.tokenize(sql, dialect="duckdb")
    except SqlglotError as error:
        raise UsageError(f"query: {_one_line(error)}") from None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        _refuse(f"nothing to run: write {_FIRST_HELP}")
    depth = deepest = 0
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            _refuse("one statement at a time: remove what follows the semicolon")
        depth += (token.text in "([{") - (token.text in ")]}") if len(token.text) == 1 else 0
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        _refuse(f"brackets are nested {deepest} deep, at most {MAX_DEPTH} are taken: use WITH")
    return tokens


def _parse(text: str) -> exp.Expression | None:
    """The tree of one statement; None when sqlglot does not understand it."""
    try:
        statements = sqlglot.parse(text, dialect="duckdb")
    except RecursionError:
        raise UsageError("query: nested too deeply: use WITH") from None
    except SqlglotError:
        return None
    if len(statements) != 1:
        _refuse("one statement at a time")
    return statements[0] if isinstance(statements[0], exp.Expression) else None


def _check_tree(tree: exp.Expression, tables: Collection[str]) -> None:
    nodes = list(tree.walk())
    names = _Names(tables, (cte.alias for cte in tree.find_all(exp.CTE)))
    functions = _function_classes()
    for node in nodes:
        if isinstance(node, exp.Table):
            if isinstance(node.this, exp.Identifier):
                names.check_table(node.name, node.db, node.catalog)
            elif not isinstance(node.this, exp.Func):
                _refuse(f"{node.sql('duckdb')[:60]!r} can't be read")
        elif isinstance(node, exp.Anonymous):
            names.check_function(node.name, operator=False, in_from=isinstance(node.parent, exp.Table | exp.Lateral))
        elif isinstance(node, exp.Describe | exp.Summarize) and not isinstance(node.this, exp.Query | exp.Table | exp.Values):
            _refuse(f"{node.this.sql('duckdb')[:60]} can't be described: only the tables of 'stoker schema', and queries")
        elif isinstance(node, exp.Command) or (isinstance(node, exp.Show) and node.name.upper() != "TABLES"):  # SHOW alone gets here
            _refuse("only SHOW TABLES; DESCRIBE shows one")
        elif not isinstance(node, _NODES + _SYNTAX) and type(node) not in functions:
            _refuse(f"{_named(node)} is not allowed")


@functools.cache
def _function_classes() -> frozenset[type[exp.Func]]:
    """sqlglot's classes for the allowed functions, found by parsing calls of each that it reads as more than a name and arguments."""
    duckdb = sqlglot.Dialect.get_or_raise("duckdb")
    parser = duckdb.parser_class
    own = {*parser.FUNCTIONS, *parser.FUNCTION_PARSERS, *parser.NO_PAREN_FUNCTION_PARSERS, *duckdb.tokenizer_class.KEYWORDS}
    found: set[type[exp.Func]] = set()
    for name in FUNCTIONS | TABLE_FUNCTIONS:
        if name.upper() in own:
            calls = ", ".join(f"{name}({arguments})" for arguments in ("", "a", "a, b", "a, b, c"))
            tree = sqlglot.parse_one(f"SELECT {calls}", dialect=duckdb, error_level=ErrorLevel.IGNORE)  # some take another number of them
            found.update(type(node) for node in tree.find_all(exp.Func) if not isinstance(node, exp.Anonymous))
    return frozenset(found)


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _named(node: exp.Expr) -> str:
    name = node.sql_names()[0].lower() if isinstance(node, exp.Func) else type(node).__name__
    return f"{name!r}"


def _one_line(error: Exception) -> str:
    return re.sub(r"\x1b\[\d*m", "", " ".join(str(error).split()))[:300]
