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

from placeit.cli.command import was_given, write_result
from placeit.cli.nodes import OnLoss, OnLossOption
from placeit.cli.options import CheckedOptions, Logits
from placeit.cli.placements import RematchOption, known, naming, to_run
from placeit.cli.prompts import PromptOptions
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import StateMemoryError, UsageError
from placeit.core.extras import need
from placeit.core.interrupts import INTERRUPTED
from placeit.report.text import NOTHING, facts, rate, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.session import Session
    from placeit.text.generating import Piece, TextModel, Wanted

__all__ = ["EXAMPLES", "generate_text"]

_COLUMNS = 60  # most columns of a prompt above its text

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
            show_default=False,
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
    """A text that is generated."""

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

    def add(self, piece: Piece, longest: int) -> float:
        """Take the next piece; return by how much the share that is done grows, of a text of ``longest`` tokens."""
        before, self.piece = self.count, piece
        self.text += piece.text
        return ((longest if self.ended else self.count) - before) / longest

    @property
    def error(self) -> str | None:
        """Why it has failed; None if it has not."""
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
    Ctrl-C ends them all, and prints what there is of them.
    """
    need("Text", "text", "tokenizers", "jinja2")
    from placeit.text.generating import AT_ONCE, TextModel

    wanted, asked = text.wanted(), prompts.read()
    if text.draft is not None and placement is None and not was_given("logits"):
        options = replace(options, logits=Logits.ALL)
    what = to_run(options, placement, rematch)
    with contextlib.ExitStack() as stack:
        session, chosen = stack.enter_context(what.open())
        with terminal.progress() as progress:
            known(session, chosen, progress, costs=on_loss is OnLoss.REPLACE)
        with naming(what.path):
            server = stack.enter_context(session.serve(chosen, on_loss=on_loss.value))
        model = TextModel(server, session.model)
        if text.draft is not None:
            device = text.draft_device or session.cluster.names[0]
            draft = CheckedOptions(text.draft, devices=device, context=model.context, precision=options.precision)
            small, whole = stack.enter_context(to_run(draft, None, None).open())
            proposing = TextModel(stack.enter_context(small.serve(whole)), small.model)
            model = TextModel(server, session.model, model.tokenizer, proposing)
        encode = model.tokenizer.encode
        every = [
            _Text(one, model.tokenizer.chat([{"role": "user", "content": one}]) if prompts.chat else encode(one))
            for one in asked
        ]
        head = {"model": str(options.model), "placement_file": None if placement is None else str(placement)}
        if prompts.is_single:
            return _one(model, every[0], wanted, terminal, head)
        at_once = min(len(every), prompts.texts or AT_ONCE)
        begin = time.perf_counter()
        interrupted = _generate(session, model, every, wanted, at_once, terminal)
        took, stats = time.perf_counter() - begin, server.stats()
        alone = next((one.why for one in server.stepping if one.why is not None), None)
    tokens, failed = sum(one.count for one in every), any(one.error is not None for one in every)
    data: dict[str, Any] = head | {
        "texts": [{"prompt": one.prompt, **one.to_dict(), "error": one.error} for one in every],
        "at_once": at_once,
        "tokens": tokens,
        "seconds": took,
        "tokens_per_s": tokens / took,
        "draft": _draft(model),
        "steps": {str(rows): runs for rows, runs in sorted(stats.steps.items())},
        "alone": alone,
        "interrupted": interrupted,
    }
    shown = _nothing_more if terminal.quiet else partial(_summary, data=data)
    return Output(data, shown, INTERRUPTED if interrupted else int(failed))


def _draft(model: TextModel) -> dict[str, Any] | None:
    draft = model.draft
    return None if draft is None else {"proposed": draft.proposed, "kept": draft.kept, "pays": draft.pays}


def _one(model: TextModel, text: _Text, wanted: Wanted, terminal: Terminal, head: Mapping[str, Any]) -> Output:
    """Generate a text, and print it while it is generated."""
    live = not (terminal.json or terminal.quiet)
    first = begin = time.perf_counter()
    with contextlib.closing(model.generate(text.tokens, wanted)) as pieces:
        for piece in pieces:
            first = time.perf_counter() if piece.tokens == 1 else first
            text.add(piece, model.context)
            if live:
                write_result(piece.text)
    took = time.perf_counter() - first
    if live:
        write_result("\n")
    speed = {"first_token_s": first - begin, "tokens_per_s": (text.count - 1) / took if text.count > 1 else None}
    data = {**head, **text.to_dict(), **speed, "draft": _draft(model)}
    return Output(data, _nothing_more, answer=text.text)


def _generate(
    session: Session, model: TextModel, every: Sequence[_Text], wanted: Wanted, at_once: int, terminal: Terminal
) -> bool:
    """Generate texts, and print each when it and all before it have ended; return whether Ctrl-C has ended them."""
    printed, done, longest = 0, 0.0, wanted.most or model.context
    with contextlib.closing(model.generate_all([one.tokens for one in every], wanted, at_once=at_once)) as pieces:
        try:
            for place, one in enumerate(every):
                with terminal.progress() as progress:
                    while not one.ended:
                        number, piece = next(pieces)
                        done += every[number].add(piece, longest) / len(every)
                        if progress is not None:
                            progress(f"text {place + 1} of {len(every)}", done)
                _print(one, place + 1, len(every), terminal)
                printed = place + 1
        except KeyboardInterrupt:
            session.hurry()
            for place, one in enumerate(every[printed:], printed):
                if one.count:
                    _print(one, place + 1, len(every), terminal)
            return True
    return False


def _print(text: _Text, number: int, count: int, terminal: Terminal) -> None:
    """Print a text under its number and its prompt."""
    if not terminal.json:
        prompt = json.dumps(shortened(text.prompt, _COLUMNS), ensure_ascii=False)
        cut = "" if text.ended and text.error is None else ", cut short"
        write_result(f"==> {number} of {count}{cut}: {prompt} <==\n{text.text}\n\n")
    if text.piece is not None and text.error is not None:
        fewer = " Generate fewer texts at the same time with --texts." if isinstance(text.piece.error, StateMemoryError) else ""
        typer.echo(f"Text {number} of {count} has failed: {text.error}{fewer}", err=True)


def _summary(console: Console, data: Mapping[str, Any]) -> None:
    """Print numbers of all texts."""
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


def _nothing_more(console: Console) -> None:
    """Print nothing: the text has been printed while it was generated."""
