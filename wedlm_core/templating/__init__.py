"""Render untrusted Jinja templates: in Jinja's sandbox, with a limit on the length of the text.

Time and memory are not limited here: the pipeline renders in a process that has limits of both. Knows Jinja. Knows
nothing of models, tokenizers, tables or files. Imports no torch.
"""

from wedlm_core.templating.chat import ChatTemplate, chat_variables
from wedlm_core.templating.sandbox import (
    MOST_CHARS,
    BoundedEnvironment,
    BoundedTemplate,
    TemplateLimitError,
    TemplateSyntaxError,
)

__all__ = [
    "MOST_CHARS",
    "BoundedEnvironment",
    "BoundedTemplate",
    "ChatTemplate",
    "TemplateLimitError",
    "TemplateSyntaxError",
    "chat_variables",
]
