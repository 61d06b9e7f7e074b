"""``placeit generate-text``: continue a text, or answer a message, with a decoder on its devices."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.command import write_result
from placeit.cli.options import CheckedOptions
from placeit.cli.placements import RematchOption, known, naming, to_run
from placeit.cli.terminal import Output, Terminal
from placeit.core.extras import need

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.text.generating import Wanted

__all__ = ["EXAMPLES", "generate_text"]

EXAMPLES = """\b
Examples:
  placeit generate-text FOLDER "Once upon a time" -d CPU --context 1024
  placeit generate-text FOLDER "What is a graph?" --chat -p placement.json
  placeit generate-text FOLDER "A list:" -p placement.json --temperature 0.8 --top-p 0.9 --seed 1 --stop ";"
"""


@dataclass(frozen=True)
class TextOptions:
    """Options of a text: when it ends, and how its tokens are chosen."""

    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", metavar="N", min=1, help="Most tokens to generate; default: up to the context.", show_default=False
        ),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; repeatable.", show_default=False)
    ] = None
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0, help="Divides the logits; 0 takes the most likely token.")
    ] = 0.0
    top_p: Annotated[
        float, typer.Option("--top-p", metavar="SHARE", help="Choose among the most likely tokens that have this share in all.")
    ] = 1.0
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="N", min=0, help="Choose among the N most likely tokens; 0: all.")
    ] = 0
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Seed of the choice; default: another each time.")
    ] = None

    def wanted(self) -> Wanted:
        """Return the options, checked. Raises UsageError."""
        from placeit.text.generating import Wanted
        from placeit.text.sampling import Sampling

        return Wanted(self.tokens, self.stop or (), Sampling(self.temperature, self.top_p, self.top_k, self.seed))


def generate_text(
    *,
    options: CheckedOptions,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue, or a message.", show_default=False)],
    chat: Annotated[bool, typer.Option("--chat", help="Answer the prompt as a message, by the model's chat template.")] = False,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement of the model; default: whole, on --devices."),
    ] = None,
    rematch: RematchOption = None,
    text: TextOptions,
    terminal: Terminal,
) -> Output:
    """Generate text with a decoder.

    MODEL is a folder as model hubs have it, with the model (openvino_model.xml or model.onnx) and its tokenizer
    (tokenizer.json). The text is printed while it is generated.
    """
    need("Text", "text", "tokenizers", "jinja2")
    from placeit.text.generating import TextModel

    wanted, live = text.wanted(), not (terminal.json or terminal.quiet)
    what = to_run(options, placement, rematch)
    with contextlib.ExitStack() as stack:
        session, chosen = stack.enter_context(what.open())
        with terminal.progress() as progress:
            known(session, chosen, progress)
        with naming(what.path):
            server = stack.enter_context(session.serve(chosen))
        model = TextModel(server, session.model)
        tokens = model.tokenizer.chat([{"role": "user", "content": prompt}]) if chat else model.tokenizer.encode(prompt)
        parts: list[str] = []
        begin = time.perf_counter()
        first = begin
        pieces = stack.enter_context(contextlib.closing(model.generate(tokens, wanted)))
        for piece in pieces:
            first = time.perf_counter() if piece.tokens == 1 else first
            parts.append(piece.text)
            if live:
                write_result(piece.text)
        took = time.perf_counter() - first
    if live:
        write_result("\n")
    data: dict[str, Any] = {
        "model": str(options.model),
        "placement_file": None if placement is None else str(placement),
        "text": "".join(parts),
        "end": piece.end,
        "prompt_tokens": len(tokens),
        "tokens": piece.tokens,
        "first_token_s": first - begin,
        "tokens_per_s": (piece.tokens - 1) / took if piece.tokens > 1 else None,
    }
    return Output(data, _nothing_more, answer=data["text"])


def _nothing_more(console: Console) -> None:
    """Print nothing: the text has been printed while it was generated."""
