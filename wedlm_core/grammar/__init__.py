"""Grammars of structured outputs: which tokens may come next, and which must. Torch-free.

:class:`GrammarCompiler` turns :class:`wedlm_core.structured_outputs.StructuredOutputs` into a :class:`Grammar`, each
different one once. Every sequence has a :class:`Constraint`: it reads commits, drafts forced tokens, and cuts proposals
at the first forbidden one. The package knows tokens and texts. It knows nothing of logits, windows or the engine. The
backend is the library llguidance, which few others import.
"""

from wedlm_core.grammar.compiler import Grammar, GrammarCompiler
from wedlm_core.grammar.constraint import AN_END, UNKNOWN, Constraint, Proposals

__all__ = ["AN_END", "UNKNOWN", "Constraint", "Grammar", "GrammarCompiler", "Proposals"]
