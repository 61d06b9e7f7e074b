"""``placeit generate-text``: continue a text, or answer a message, with a decoder on its devices."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from placeit.cli.command import exit_code, was_given, write_result
from placeit.cli.nodes import OnLoss, OnLossOption
from placeit.cli.options import CheckedOptions, Logits
from placeit.cli.placements import RematchOption, find_target, profile_if_needed
from placeit.cli.prompts import PromptOptions
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import StateMemoryError, UsageError, naming
from placeit.core.extras import need
from placeit.report import as_json
from placeit.report.text import NOTHING, facts, rate, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.session import Session
    from placeit.text.generating import Piece, TextModel, Wanted

__all__ = ["EXAMPLES", "generate_text"]

_COLUMNS = 60  # maximum width of the prompt that is printed above its text

EXAMPLES = """\b
Examples:
  placeit generate-text FOLDER "Once upon a time" -d CPU --context 1024
  placeit generate-text FOLDER "What is a graph?" --chat -p placement.json
  placeit generate-text FOLDER "Once upon a time" "In a hole" "Far away" -p placement.json --tokens 100
  placeit generate-text FOLDER --prompts prompts.txt --texts 4 -p placement.json --json
  placeit generate-text FOLDER "Once upon a time" -p placement.json --draft SMALL_FOLDER --draft-device CPU@3
  placeit generate-text FOLDER "A list:" -p placement.json --temperature 0.8 --top-p 0.9 --seed 1 --stop ";"
"""


@dataclass(frozen=True)
class TextOptions:
    """Options of a text: when it ends, and how its tokens are chosen."""

    HEADING: ClassVar = "Text"

    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", min=1, help="Most tokens to generate; default: up to the context."),
    ] = None
    stop: Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; repeatable.")] = None
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
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="Seed of the choice, plus 1 for each further prompt; default: another each time."
        ),
    ] = None

    draft: Annotated[
        Path | None,
        typer.Option(
            "--draft",
            metavar="FOLDER",
            help="Small decoder with the same tokens: it proposes tokens, which the model checks in one run, as long as this "
            "is measured to be faster. Needs --logits all.",
        ),
    ] = None
    draft_device: Annotated[
        str | None, typer.Option("--draft-device", metavar="NAME", help="Device of the draft; default: the model's first.")
    ] = None

    def wanted(self) -> Wanted:
        """Return the options, checked. Raises UsageError."""
        from placeit.text.generating import Wanted
        from placeit.text.sampling import Sampling

        if self.draft is None and self.draft_device is not None:
            raise UsageError("--draft-device is the device of a draft: give its folder with --draft.")
        return Wanted(self.tokens, self.stop or (), Sampling(self.temperature, self.top_p, self.top_k, self.seed))


@dataclass
class _Text:
    """A prompt, and the text that was generated for it so far."""

    prompt: str
    tokens: list[int]  # of the prompt
    text: str = ""
    piece: Piece | None = None  # the last one

    @property
    def ended(self) -> bool:
        return self.piece is not None and self.piece.end is not None

    @property
    def count(self) -> int:
        return 0 if self.piece is None else self.piece.tokens

    def add(self, piece: Piece, max_tokens: int) -> float:
        """Append the next piece, and return the progress that it makes, as a share of ``max_tokens``."""
        before, self.piece = self.count, piece
        self.text += piece.text
        return ((max_tokens if self.ended else self.count) - before) / max_tokens

    @property
    def error(self) -> str | None:
        """The message of the error that ended the text; None if there was none."""
        return None if self.piece is None or self.piece.error is None else str(self.piece.error)

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "end": None if self.piece is None else self.piece.end,
            "prompt_tokens": len(self.tokens),
            "tokens": self.count,
        }


def generate_text(
    *,
    options: CheckedOptions,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement of the model; default: whole, on --devices."),
    ] = None,
    rematch: RematchOption = None,
    on_loss: OnLossOption = OnLoss.FAIL,
    prompts: PromptOptions,
    text: TextOptions,
    terminal: Terminal,
) -> Output:
    """Generate text with a decoder.

    MODEL is a folder as model hubs have it, with the model (openvino_model.xml or model.onnx) and its tokenizer
    (tokenizer.json). The text is printed while it is generated.

    The texts of several prompts are generated at the same time, and printed in the order of the prompts when they have ended.
    Ctrl-C ends them all, and prints the texts so far.
    """
    need("Text", "text", "tokenizers", "jinja2")
    from placeit.text.generating import AT_ONCE, TextModel

    wanted, prompt_texts = text.wanted(), prompts.read()
    if text.draft is not None and placement is None and not was_given("logits"):
        options = replace(options, logits=Logits.ALL)
    target = find_target(options, placement, rematch)
    with contextlib.ExitStack() as stack:
        session, placed = stack.enter_context(target.open())
        with terminal.progress() as progress:
            profile_if_needed(session, placed, progress, costs=on_loss is OnLoss.REPLACE)
        with naming(target.path):
            server = stack.enter_context(session.serve(placed, on_loss=on_loss.value))
        model = TextModel(server, session.model, chunk=placed.chunk)
        if text.draft is not None:
            device = text.draft_device or session.cluster.names[0]
            draft = CheckedOptions(text.draft, devices=device, context=model.context, precision=options.precision)
            draft_session, draft_placement = stack.enter_context(find_target(draft, None, None).open())
            draft_model = TextModel(stack.enter_context(draft_session.serve(draft_placement)), draft_session.model)
            model = TextModel(server, session.model, model.tokenizer, draft_model, chunk=placed.chunk)
        encode = model.tokenizer.encode
        all_texts = [
            _Text(item, model.tokenizer.chat([{"role": "user", "content": item}]) if prompts.chat else encode(item))
            for item in prompt_texts
        ]
        header = {"model": str(options.model), **as_json.files({"placement": placement})}
        if prompts.is_single:
            return _generate_single(model, all_texts[0], wanted, terminal, header)
        at_once = min(len(all_texts), prompts.texts or AT_ONCE)
        start = time.perf_counter()
        interrupted = _generate_several(session, model, all_texts, wanted, at_once, terminal)
        elapsed, stats = time.perf_counter() - start, server.stats()
        why_not_joined = next((item.why for item in server.stepping if item.why is not None), None)
    tokens, failed = sum(item.count for item in all_texts), any(item.error is not None for item in all_texts)
    data: dict[str, Any] = header | {
        "texts": [{"prompt": item.prompt, **item.to_dict(), "error": item.error} for item in all_texts],
        "at_once": at_once,
        "tokens": tokens,
        "seconds": elapsed,
        "tokens_per_s": tokens / elapsed,
        "draft": _draft(model),
        "steps": {str(rows): runs for rows, runs in sorted(stats.steps.items())},
        "alone": why_not_joined,
        "interrupted": interrupted,
    }
    show = _show_nothing if terminal.quiet else partial(_summary, data=data)
    return Output(data, show, exit_code(interrupted=interrupted, failed=failed))


def _draft(model: TextModel) -> dict[str, Any] | None:
    draft = model.draft
    return None if draft is None else {"proposed": draft.proposed, "kept": draft.kept, "pays": draft.pays}


def _generate_single(model: TextModel, text: _Text, wanted: Wanted, terminal: Terminal, header: Mapping[str, Any]) -> Output:
    live = not (terminal.json or terminal.quiet)
    first = start = time.perf_counter()
    with contextlib.closing(model.generate(text.tokens, wanted)) as pieces:
        for piece in pieces:
            first = first if text.count else time.perf_counter()
            text.add(piece, model.context)
            if live:
                write_result(piece.text)
    elapsed = time.perf_counter() - first
    if live:
        write_result("\n")
    speed = {"first_token_s": first - start, "tokens_per_s": (text.count - 1) / elapsed if text.count > 1 else None}
    data = {**header, **text.to_dict(), **speed, "draft": _draft(model)}
    return Output(data, _show_nothing, answer=text.text)


def _generate_several(
    session: Session, model: TextModel, all_texts: Sequence[_Text], wanted: Wanted, at_once: int, terminal: Terminal
) -> bool:
    """Generate several texts at once, and print them in order; return whether Ctrl-C ended them."""
    printed, done, max_tokens = 0, 0.0, wanted.most or model.context
    with contextlib.closing(model.generate_all([item.tokens for item in all_texts], wanted, at_once=at_once)) as pieces:
        try:
            for position, item in enumerate(all_texts):
                with terminal.progress() as progress:
                    while not item.ended:
                        number, piece = next(pieces)
                        done += all_texts[number].add(piece, max_tokens) / len(all_texts)
                        if progress is not None:
                            progress(f"text {position + 1} of {len(all_texts)}", done)
                _print(item, position + 1, len(all_texts), terminal)
                printed = position + 1
        except KeyboardInterrupt:
            session.hurry()
            for position, item in enumerate(all_texts[printed:], printed):
                if item.count:
                    _print(item, position + 1, len(all_texts), terminal)
            return True
    return False


def _print(text: _Text, number: int, count: int, terminal: Terminal) -> None:
    """Print a text under a heading with its number and its prompt."""
    if not terminal.json:
        prompt = json.dumps(shortened(text.prompt, _COLUMNS), ensure_ascii=False)
        cut = "" if text.ended and text.error is None else ", cut short"
        write_result(f"==> {number} of {count}{cut}: {prompt} <==\n{text.text}\n\n")
    if text.piece is not None and text.error is not None:
        fewer = " Generate fewer texts at the same time with --texts." if isinstance(text.piece.error, StateMemoryError) else ""
        typer.echo(f"Text {number} of {count} has failed: {text.error}{fewer}", err=True)


def _summary(console: Console, data: Mapping[str, Any]) -> None:
    ended = sum(one["end"] not in (None, "error") for one in data["texts"])
    failed = sum(one["error"] is not None for one in data["texts"])
    why = ", ended by Ctrl-C" if data["interrupted"] else f", {failed} failed" if failed else ""
    steps, runs = sum(int(rows) * count for rows, count in data["steps"].items()), sum(data["steps"].values())
    joined = f"{steps / runs:.3g} texts in a step, on average" if runs else NOTHING
    draft = data["draft"]
    facts(
        console,
        {
            "texts": str(ended) if ended == len(data["texts"]) else f"{ended} of {len(data['texts'])}{why}",
            "tokens": str(data["tokens"]),
            "tokens per second": rate(data["tokens_per_s"]),
            "joined steps": joined if data["alone"] is None else f"none, as {data['alone']}",
            **({} if draft is None else {"proposed tokens": f"{draft['proposed']}, of which {draft['kept']} were right"}),
        },
    )


def _show_nothing(console: Console) -> None:
    """Print nothing, since the text was printed while it was generated."""
