"""Sequences under a grammar: their matchers, the tokens that each of their rows may choose, and forced drafts.

:mod:`.matching` is the place of one sequence in its grammar, :mod:`.grammar_masks` the allowed tokens of a forward's
rows, :mod:`.constraints` both for all sequences of an engine. Grammars come from :mod:`wedlm_core.grammar`.
"""
