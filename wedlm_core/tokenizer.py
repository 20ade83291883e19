"""Text to token ids and back: a thin wrapper around a fast Hugging Face tokenizer. Imports no torch."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from tokenizers import Tokenizer as Backend

from wedlm_core.checks import is_text
from wedlm_core.config.model import id_tuple
from wedlm_core.errors import ConfigError, RequestError, WeightsError, explain, first_line
from wedlm_core.messages import with_text
from wedlm_core.plain_tokenizer import PlainTokenizer, open_plain
from wedlm_core.templating import ChatTemplate, TemplateLimitError, TemplateSyntaxError, chat_variables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_REPLACEMENT = "\ufffd"
_CHARACTERS, _LEAST_LIMIT = 10, 256  # of the beginning of a long text: characters for each token of the limit
_NO_TEXT = "valid Unicode text, without lone halves of surrogate pairs"


class Tokenizer:
    """Tokenizer of a model folder.

    Attributes:
        eos_token_ids: the tokenizer's end-of-sequence id, then those of ``generation_config.json``.
        mask_token_id: id of the mask token, or None where the tokenizer names none.
        vocab_size: number of its ids, added tokens included; the model's may be larger (padding).
        render_chat: renders a chat template with its variables, in this process without limits of time and memory.
    """

    def __init__(self, fast: PlainTokenizer | PreTrainedTokenizerFast, eos_token_ids: Sequence[int] = ()) -> None:
        self._fast = fast
        self._backend = fast.backend_tokenizer
        own = [fast.eos_token_id] if fast.eos_token_id is not None else []
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *eos_token_ids]))
        self.mask_token_id: int | None = fast.mask_token_id
        self.vocab_size: int = len(fast)
        self.render_chat: Callable[[ChatTemplate, Mapping[str, Any]], str] = ChatTemplate.render
        self._templates: dict[str, ChatTemplate] = {}

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Read ``tokenizer.json``, ``tokenizer_config.json`` and ``generation_config.json`` of ``folder``.

        Raises:
            WeightsError: ``tokenizer.json`` is absent or unreadable.
        """
        folder = Path(folder)
        if not (folder / "tokenizer.json").is_file():
            raise WeightsError(
                explain("model", str(folder), "has no tokenizer.json", "Save its tokenizer as a fast tokenizer there.")
            )
        try:
            fast = open_plain(folder) or _by_transformers(folder)
            generation = folder / "generation_config.json"
            raw = json.loads(generation.read_text(encoding="utf-8")) if generation.is_file() else {}
            ends = id_tuple("eos_token_id", raw.get("eos_token_id"))
        except ConfigError:
            raise
        except Exception as error:  # the tokenizers library raises bare Exception for a damaged file
            reason = f"its tokenizer cannot be read ({type(error).__name__}: {first_line(error)})"
            raise WeightsError(explain("model", str(folder), reason, "Download it again.")) from error
        return cls(fast, ends)

    def to_json(self) -> str:
        """The tokenizer as the text of its ``tokenizer.json``."""
        return self._backend.to_str()

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; special tokens written in the text are recognised, none are added.

        Raises:
            RequestError: it is not a string, or contains a lone surrogate.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """:meth:`encode` of each text."""
        for text in texts:
            _require_text("prompt", text)
        # The fast variant keeps no offsets, which take most of the time and memory of a long text.
        return [e.ids for e in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_prompt(self, text: str) -> list[int]:
        """:meth:`encode` and :meth:`as_prompt`."""
        return self.as_prompt(self.encode(text))

    def as_prompt(self, ids: Sequence[int]) -> list[int]:
        """Add the tokens that ``tokenizer.json`` puts around a prompt without a chat template.

        Most models have none, some a begin-of-sequence token, and ``tiny`` the line end before an answer. An empty
        prompt stays empty.
        """
        before, after = self._around_prompts
        return [*before, *ids, *after] if ids else []

    @functools.cached_property
    def _around_prompts(self) -> tuple[list[int], list[int]]:
        encoding = self._backend.encode("a")
        own = [place for place, added in enumerate(encoding.special_tokens_mask) if not added]
        return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]

    @functools.cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts of the special tokens, which :meth:`encode` recognises in any text."""
        return tuple(token.content for token in self._backend.get_added_tokens_decoder().values() if token.special)

    def encode_as_text(self, text: str) -> list[int]:
        """:meth:`encode`, but special tokens in the text are ordinary text."""
        _require_text("prompt", text)
        return self._plain_backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    @functools.cached_property
    def _plain_backend(self) -> Backend:
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend

    def least_tokens(self, text: str, limit: int) -> int:
        """Tokens that ``text`` has at least, found without encoding all of it; 0 where nothing is certain.

        Half of the tokens of its beginning: the text after the beginning changes tokens only near the cut.

        Args:
            text: any text.
            limit: the number of tokens that the result is compared with.
        """
        beginning = _CHARACTERS * max(limit, _LEAST_LIMIT)
        takes_spaces = any(token.lstrip for token in self._backend.get_added_tokens_decoder().values())
        if len(text) <= beginning or takes_spaces:  # such a token has all spaces before it
            return 0
        encodable = text[:beginning].encode(errors="replace").decode()
        return len(self.encode(encodable)) // 2

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``. Invalid UTF-8 becomes U+FFFD; ids outside the vocabulary are left out."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`apply_chat_template` can be used."""
        return self._fast.chat_template is not None

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tokenize: Literal[True] = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tokenize: Literal[False],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str: ...
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tokenize: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int] | str:
        """Render a conversation with the tokenizer's template.

        Args:
            messages: mappings with ``role`` and ``content`` (text, or a list of parts of text; or ``tool_calls``), and
                other keys that the template reads; not changed.
            add_generation_prompt: append the opening of the assistant's turn.
            tokenize: return token ids; else the rendered text.
            tools: descriptions of the tools that the template offers to the model.
            variables: further variables of the template, such as ``enable_thinking``; special tokens may be among them.

        Raises:
            ConfigError: the tokenizer has no chat template.
            RequestError: the template refuses these messages.
            TemplateLimitError: the text is too long, or exceeds a limit of ``render_chat``.
            OSError: the process of ``render_chat`` cannot be started.
        """
        if not self.has_chat_template:
            raise ConfigError(
                explain(
                    "chat_template", None, "this tokenizer has none", "Pass plain prompts, or add a template to it."
                )
            )
        if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
            rule = "a conversation is a list of at least one message"
            raise RequestError(explain("messages", messages, rule, 'Give a list of {"role": ..., "content": ...}.'))
        _require_variables(variables)
        messages = [with_text("messages", one) if isinstance(one, Mapping) else one for one in messages]
        for message in messages:
            if not _is_message(message):
                raise RequestError(
                    explain("messages", message, "each message has a role, and a content (text) or tool calls",
                            'Give a list of {"role": ..., "content": ...}.')
                )  # fmt: skip
        template = self._chat_template(with_tools=tools is not None)
        try:
            own = chat_variables(
                # Templates that do not handle tool calls still read the content.
                [{**message, "content": message.get("content") or ""} for message in messages],
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **{**self._fast.special_tokens_map, **(variables or {})},
            )
            text = self.render_chat(template, own)
        except TemplateLimitError as error:
            raise TemplateLimitError(f"the model's chat template: {error}.") from error
        except OSError:  # of the process of ``render_chat``
            raise
        except Exception as error:  # a template may raise anything
            raise RequestError(
                explain(
                    "messages",
                    messages,
                    f"the chat template refuses them ({first_line(error)})",
                    'Give a list of {"role": ..., "content": ...}.',
                )
            ) from error
        if not is_text(text):
            raise RequestError(explain("messages", messages, _NO_TEXT, "Re-encode them."))
        return self.encode(text) if tokenize else text

    def _chat_template(self, *, with_tools: bool) -> ChatTemplate:
        """The compiled chat template. If the model has several: the one for tools if there are tools, else the default.

        Raises:
            ConfigError: it is not a template, or there are several and none is the default.
        """
        source = self._fast.chat_template
        if isinstance(source, Mapping):
            name = "tool_use" if with_tools and "tool_use" in source else "default"
            if name not in source:
                rule = "none of these chat templates is the default"
                raise ConfigError(explain("chat_template", sorted(source), rule, "Name one 'default'."))
            source = source[name]
        if source not in self._templates:
            try:
                self._templates[source] = ChatTemplate(source)
            except TemplateSyntaxError as error:
                rule = f"not a Jinja template ({error})"
                raise ConfigError(
                    explain("chat_template", source, rule, "Correct it in the model's folder.")
                ) from error
        return self._templates[source]


_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt", "documents")


def _require_variables(variables: object) -> None:
    rule = "a mapping of names to values for the chat template"
    if variables is not None and not (isinstance(variables, Mapping) and all(isinstance(n, str) for n in variables)):
        remedy = 'Pass for example {"enable_thinking": False}.'
        raise RequestError(explain("chat_template_kwargs", variables, rule, remedy))
    taken = [name for name in variables or () if name in _OWN_VARIABLES]
    if taken:
        raise RequestError(
            explain(
                "chat_template_kwargs", taken, f"{rule}, other than {', '.join(_OWN_VARIABLES)}", "Pass these as such."
            )
        )


def _by_transformers(folder: Path) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(str(folder))
    return fast


def _require_text(name: str, text: object) -> None:
    if not is_text(text):
        raise RequestError(explain(name, text, _NO_TEXT, "Re-encode it."))


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


class TextStream:
    """Incremental detokeniser that returns whole characters only.

    A character whose bytes are spread over several tokens is held back until it is complete. The joined results of
    :meth:`push` and :meth:`finish` equal ``decode`` of all ids pushed.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # Ids since the last but one clean boundary. Decoding starts one chunk early because some decoders
        # treat the first token of a text specially (they strip its leading space).
        self._ids: list[int] = []
        self._context = 0
        self._given = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids; return the characters that are now final (possibly none)."""
        self._ids.extend(token_ids)
        text = self._tokenizer.decode(self._ids, self._skip)
        # The bytes of an unfinished character decode to U+FFFD at the end; the text before it is final.
        end = len(text.rstrip(_REPLACEMENT))
        piece = text[self._given : end]
        self._given = max(self._given, end)
        chunk = self._ids[self._context :]
        chunk_text = self._tokenizer.decode(chunk, self._skip) if end == len(text) else ""
        if chunk_text:
            self._ids, self._context, self._given = chunk, len(chunk), len(chunk_text)
        return piece

    def finish(self) -> str:
        """The text that is still held back, as :meth:`Tokenizer.decode` renders it. It ends the stream."""
        piece = self._tokenizer.decode(self._ids, self._skip)[self._given :]
        self._ids, self._context, self._given = [], 0, 0
        return piece
