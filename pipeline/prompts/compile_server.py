"""A process that compiles grammars to see whether that ends; see :mod:`pipeline.prompts.structures`.

The opening is the arguments of :class:`GrammarCompiler`, a request structured outputs. The answer is None, or the
:class:`WeDLMError` that refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.prompts.limited_process import serve
from wedlm_core.errors import WeDLMError
from wedlm_core.grammar.compiler import GrammarCompiler
from wedlm_core.structured_outputs import StructuredOutputs


def main(descriptor: int) -> None:
    """Serve the connection of this number."""
    serve(descriptor, _refusals)


def _refusals(arguments: tuple[Any, ...]) -> Callable[[StructuredOutputs], WeDLMError | None]:
    compiler = GrammarCompiler(*arguments)

    def refusal(wanted: StructuredOutputs) -> WeDLMError | None:
        try:
            compiler.check(wanted)
        except WeDLMError as error:
            return error
        return None

    return refusal
