"""A Jinja sandbox that counts every operation and bounds its size.

Jinja's sandbox intercepts operators, calls and filters. Here templates are also rewritten when they are compiled, so
that loops, comparisons, slices, concatenations and list literals call methods of the environment too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, MethodType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from wedlm_core.templating.filters import bounded_filters, counted_tests
from wedlm_core.templating.growth import OPERATORS, apply, check_method
from wedlm_core.templating.limits import (
    LIMITS,
    TemplateLimits,
    TemplateSyntaxError,
    current,
    metered,
)
from wedlm_core.templating.sizes import check

__all__ = ["BoundedEnvironment", "BoundedTemplate"]

_DIGITS = re.compile("[0-9]+")
_UNBOUNDED_GLOBALS = ("lipsum",)
"""Jinja globals that are removed: they generate filler text of any length."""


class BoundedTemplate:
    """A compiled template."""

    def __init__(self, environment: BoundedEnvironment, text: str, limits: TemplateLimits = LIMITS) -> None:
        """Compile ``text``.

        Raises:
            TemplateSyntaxError: it is not a valid template, too long, or nested too deeply.
        """
        self._limits = limits
        if len(text) > limits.source_chars:
            raise TemplateSyntaxError(f"it has {len(text)} characters, and {limits.source_chars} is the most")
        try:
            with metered(limits):
                self._template = environment.from_string(text)
        except TemplateError as error:
            raise TemplateSyntaxError(" ".join(str(error).split())) from error
        except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise TemplateSyntaxError(f"nested too deeply, or a literal is too long: {type(error).__name__}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for these variables.

        Raises:
            TemplateLimitError: rendering takes too long or too much memory.
            Exception: an error that an expression of the template raises.
        """
        with metered(self._limits) as meter:
            pieces, chars = [], 0
            for piece in self._template.generate(variables):
                chars += len(piece)
                meter.step()
                meter.fits(chars)
                pieces.append(piece)
        return "".join(pieces)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with limits. Its arguments are those of a Jinja environment."""

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, finalize=_written)
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _Dict()
        for name in _UNBOUNDED_GLOBALS:
            del self.globals[name]
        self.filters.update(bounded_filters(self.filters))
        self.tests.update(counted_tests(self.tests))

    def set_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Replace a Jinja filter by ``function``, within the same limits."""
        self.filters.update(bounded_filters({name: function}))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counted().visit(super()._parse(source, name, filename))

    # Methods that compiled templates call.

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the output of a block or a macro."""
        parts, meter = list(pieces), current()
        meter.step()
        meter.write(sum(map(len, parts)))
        return "".join(parts)

    def joined(self, *values: Any) -> str:
        """The operator ``~``."""
        return self.concat([str(check(value, current())) for value in values])

    def ticking(self, iterable: Any) -> Any:
        """The iterable of a loop; each item counts as a step."""
        return _Ticking(iterable)

    def built(self, value: Any) -> Any:
        """A list, tuple or mapping literal, or a slice."""
        current().step()
        return check(value, current())

    def compared(self, value: Any) -> Any:
        """One side of a comparison."""
        meter = current()
        meter.step()
        meter.look_at(value)
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator; Jinja calls this for intercepted ones."""
        return apply(operator, left, right, current())

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Every call of a template."""
        owner = getattr(__obj, "__self__", None) if isinstance(__obj, (MethodType, BuiltinFunctionType)) else None
        if owner is __self:
            return __obj(*args)  # one of the methods above
        meter = current()
        meter.step()
        meter.look_at(owner)
        if isinstance(owner, (str, bytes, int)):
            args = check_method(owner, __obj.__name__, args, kwargs, meter)
        elif isinstance(__obj, LoopContext):
            args = tuple(_Ticking(arg) for arg in args)
        result = super().call(__context, __obj, *args, **kwargs)
        # A mapping's methods return its own parts, which were measured before or came with the row.
        return result if isinstance(owner, Mapping) and __obj.__name__ != "fromkeys" else check(result, meter)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` and ``format_map``, within limits."""
        if not isinstance(value, (MethodType, BuiltinFunctionType)) or value.__name__ not in ("format", "format_map"):
            return None
        text = value.__self__
        if not isinstance(text, str):
            return None

        def use(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                args, kwargs = (), dict(*args)
            return _Formatter(self).vformat(str(text), args, kwargs)

        return use


class _Counted(NodeTransformer):
    """Rewrites syntax that the sandbox does not intercept into calls of the environment's methods."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _through("ticking", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # Comparing with a constant is cheap: constants are small.
        if not any(isinstance(side, nodes.Const) for side in (node.expr, *(op.expr for op in node.ops))):
            node.expr = _through("compared", node.expr)
            for operand in node.ops:
                operand.expr = _through("compared", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("built", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._literal(node, node.items) if node.ctx == "load" else self.generic_visit(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node, [part for pair in node.items for part in (pair.key, pair.value)])

    def _literal(self, node: nodes.Expr, parts: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(part, nodes.Const) for part in parts)
        self.generic_visit(node)
        return node if constant else _through("built", node)


def _through(method: str, *values: Any) -> nodes.Expr:
    line = values[0].lineno
    called = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(called, list(values), [], None, None, lineno=line)


class _Ticking:
    """An iterable that counts each item as a step."""

    __slots__ = ("_iterable",)

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        meter = current()
        for item in self._iterable:
            meter.step()
            yield item

    def __len__(self) -> int:
        return len(self._iterable)


def _written(value: Any) -> str:
    """The output text of a value."""
    meter = current()
    meter.step()
    text = value if type(value) is str else str(value)
    meter.write(len(text))
    return text


class _Formatter(SandboxedFormatter):
    """``str.format`` with a limit on the total length of its fields."""

    def format_field(self, value: Any, format_spec: str) -> str:
        meter = current()
        meter.step()
        widths = [digits for digits in _DIGITS.findall(format_spec) if len(digits) > 11 or int(digits)]
        meter.fits(max((int(d[:12]) for d in widths), default=0))
        text = super().format_field(value, format_spec)
        meter.write(len(text))
        return text


class _Namespace(Namespace):
    """A namespace whose repr omits its contents, since it may contain itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # *args, so that a template may pass an attribute called "self".
        self, own = args[0], dict(*args[1:], **kwargs)
        for name in own:
            _refuse_private(name)
        Namespace.__init__(self, own)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"{name!r} begins with an underscore. Rename it")


class _Dict:
    """``dict`` as a function, without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """``dict.fromkeys``."""
        return dict.fromkeys(*args)
