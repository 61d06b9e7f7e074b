"""Tokenizers and chat templates, read from the folders of models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from placeit.backends.folder import TOKENIZER
from placeit.core.errors import FileError, ModelError, UsageError
from placeit.core.extras import import_extra
from placeit.core.files import read_text
from placeit.text.template import Template

__all__ = ["Tokenizer"]

Message = Mapping[str, Any]
_MAX_BEFORE = 8  # last tokens of a prompt, on which the text after it may depend: a word, and the bytes of a character


class Tokenizer:
    """The tokenizer of a model, with its chat template.

    Args:
        folder: folder with ``tokenizer.json``; further files are read if they exist: ``tokenizer_config.json``,
            ``chat_template.jinja``, ``generation_config.json`` and ``config.json``.

    Attributes:
        folder: the folder.
        ends: tokens that end a text.

    Raises:
        FileError: there is no tokenizer in the folder.
        ModelError: a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        module, file = import_extra("Text", "text", "tokenizers"), folder / TOKENIZER
        self.folder, text = folder, read_text(file)
        try:
            self._tokenizer = module.Tokenizer.from_str(text)
        except Exception as error:
            raise ModelError(f"{file} is not a tokenizer of the library 'tokenizers': {error}.") from error
        self._tokenizer.no_truncation()  # a file keeps what it was last used with
        self._tokenizer.no_padding()
        self._config = self._read("tokenizer_config.json")
        self.ends = frozenset(self._ends())

    @property
    def vocabulary(self) -> dict[str, int]:
        """Number of each token, by the token's text."""
        return dict(self._tokenizer.get_vocab())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text, with the special tokens that begin a text or, if ``special`` is false, without them.

        Raises:
            UsageError: the text is not valid Unicode.
        """
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        except (TypeError, UnicodeError) as error:
            raise UsageError("The text has surrogates, which no text in Unicode has: leave them out.") from error

    def decoder(self, prompt: Sequence[int] = ()) -> Callable[[int], str]:
        """Return a function that takes the tokens of a text one by one, and returns the text that each completes.

        Args:
            prompt: tokens before the text, without which some decoders drop the space that the text begins with.
        """
        decode, before, known = self._tokenizer.decode, list[int](), ""
        held = list[int]()  # tokens whose text is not known yet, as they may end in the middle of a character

        def step(token: int) -> str:
            nonlocal before, known
            held.append(token)
            text = str(decode([*before, *held]))
            if text == known or text.endswith("\ufffd"):
                return ""
            # with bytes that are no character behind them, some decoders lose the characters before
            new = text.removeprefix(known) if text.startswith(known) else str(decode(held))
            before = held.copy()
            held.clear()
            known = str(decode(before))
            return new

        last = list(prompt[-_MAX_BEFORE:])
        while decode(last).startswith("\ufffd"):  # in the middle of a character
            del last[0]
        for token in last:
            step(token)
        return step

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation that the model is to continue.

        Args:
            messages: each has a ``role`` (``system``, ``user`` or ``assistant``) and its ``content``.

        Raises:
            UsageError: the model has no chat template, or it refuses the messages.
            ModelError: the template is damaged, or takes too much time or memory.
        """
        if self._template is None:
            raise UsageError(
                f"{self.folder} has no chat template (chat_template.jinja), so the model is not for conversations: give it a "
                "text to continue."
            )
        return self.encode(self._template.render(messages), special=False)

    @cached_property
    def _template(self) -> Template | None:
        source, file = self._config.get("chat_template"), self.folder / "chat_template.jinja"
        if file.is_file():
            source = read_text(file)
        if isinstance(source, list):  # several, by name
            named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
            source = named.get("default")
        if not source or not isinstance(source, str):
            return None
        return Template(source, self._named_tokens(), f"The chat template of {self.folder}")

    def _named_tokens(self) -> dict[str, str]:
        named = {name: self._config.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in named.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    def _ends(self) -> list[int]:
        for name in ("generation_config.json", "config.json"):
            found = self._read(name).get("eos_token_id")
            if found is None:
                continue
            tokens = found if isinstance(found, list) else [found]
            if not all(type(token) is int for token in tokens):
                raise ModelError(
                    f"{self.folder / name}: 'eos_token_id' is {json.dumps(found)[:100]}; it must be the number of a token, or "
                    "a list of such numbers."
                )
            return tokens
        token = self._tokenizer.token_to_id(self._named_tokens().get("eos_token", ""))
        return [] if token is None else [int(token)]

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a file of the folder; empty if it does not exist."""
        file = self.folder / name
        if not file.is_file():
            return {}
        try:
            found = json.loads(read_text(file))
        except ValueError as error:
            raise FileError(f"{file} is not JSON: {error}.") from error
        return found if isinstance(found, dict) else {}
