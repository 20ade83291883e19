"""Grammars of structured outputs: schemas, regexes and choices in, compiled grammars out. Torch-free.

:class:`GrammarCompiler` turns :class:`wedlm_core.structured_outputs.StructuredOutputs` into a :class:`Grammar`, each
different one once. The package knows texts and tokens; it knows nothing of sequences, logits or the engine. The backend
is the library llguidance, which few others import.
"""

from wedlm_core.grammar.compiler import Grammar, GrammarCompiler

__all__ = ["Grammar", "GrammarCompiler"]
