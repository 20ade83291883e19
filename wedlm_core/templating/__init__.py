"""Jinja templates of strangers, rendered within limits on time, text and memory.

Knows Jinja; knows nothing of models, tokenizers, tables or files. Imports no torch.
"""

from wedlm_core.templating.chat import ChatTemplate
from wedlm_core.templating.environment import BoundedEnvironment, BoundedTemplate
from wedlm_core.templating.limits import LIMITS, TemplateLimitError, TemplateLimits, TemplateSyntaxError

__all__ = [
    "LIMITS",
    "BoundedEnvironment",
    "BoundedTemplate",
    "ChatTemplate",
    "TemplateLimitError",
    "TemplateLimits",
    "TemplateSyntaxError",
]
