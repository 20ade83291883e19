"""Render untrusted Jinja templates within limits on time, text size and memory.

Knows Jinja. Knows nothing of models, tokenizers, tables or files. Imports no torch.
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
