"""Texts, one token after the other, by a decoder that a server runs."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model, TensorSpec
from placeit.backends.folder import tokenizer_folder
from placeit.core.errors import PlaceitError, QueueFullError, UsageError
from placeit.core.threads import CHECK_S
from placeit.serving.convoy import KNOWN, step_inputs
from placeit.serving.sequence import Sequence as ServedSequence
from placeit.serving.server import Answer, Outputs, Server
from placeit.text.drafting import Draft
from placeit.text.prefixes import Prefixes
from placeit.text.sampling import Sampler, Sampling
from placeit.text.stops import Stops
from placeit.text.tokenizer import Tokenizer

__all__ = ["AT_ONCE", "CHUNK", "Piece", "TextModel", "Wanted"]

_LOGITS = "logits"
_MAX_STOPS = 16
_MAX_UNREAD = 8  # pieces that a text is generated ahead of its reader
_MAX_LOSSES = 3  # losses of a state before the next token, from which a text recovers
AT_ONCE = 8
"""Texts that are generated at the same time, by default."""
CHUNK = 128
"""Tokens of a prompt that are read in one step beside other work, by default: enough to keep a device busy."""


@dataclass(frozen=True)
class Wanted:
    """When a generated text ends, and how its tokens are chosen.

    Attributes:
        most: largest number of tokens to generate; None for as many as fit in the model's context.
        stop: stop sequences: the text ends before the first of them.
        sampling: rules for choosing tokens.
        left: called twice a second while no token comes: whether the text is to end, as its reader has left.

    Raises:
        UsageError: there are too many texts, or one is empty; or no token is wanted.
    """

    most: int | None = None
    stop: Sequence[str] = ()
    sampling: Sampling = field(default_factory=Sampling)
    left: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise UsageError(f"The number of tokens is {self.most}; it must be at least 1.")
        if not all(self.stop):
            raise UsageError("A stop sequence is empty: leave it out.")
        if len(self.stop) > _MAX_STOPS:
            raise UsageError(f"There are {len(self.stop)} stop sequences: give at most {_MAX_STOPS}.")


@dataclass(frozen=True)
class Piece:
    """A part of a generated text.

    Attributes:
        text: the text that the last token completes; it may be empty.
        tokens: number of tokens generated so far.
        end: why the text ends with this piece: ``stop`` for a stop sequence or an end token, ``length`` for the largest
            number of tokens, ``error`` for a failure; None if the text continues.
        error: the error of a text that failed; else None.
    """

    text: str
    tokens: int
    end: Literal["stop", "length", "error"] | None = None
    error: PlaceitError | None = None


class TextModel:
    """A decoder that generates texts, each in a sequence of its server.

    Args:
        server: runs the decoder.
        model: the decoder.
        tokenizer: its tokenizer; None for the one in the folder of the model's file, or in the folder above.
        draft: a small decoder, which proposes tokens that this model checks in one run; None to compute each token by itself.
        chunk: tokens of a long prompt that are read in one step beside other work; None for 128.

    Attributes:
        tokenizer: its tokenizer.
        chunk: tokens of a long prompt that are read in one step beside other work.
        context: largest number of tokens in a text.
        step: largest number of tokens that the decoder reads in a step; longer prompts take several steps.
        vocabulary: number of different tokens.
        prefixes: the states of prefixes that prompts share.
        stepping: the texts whose prompts have been read.
        draft: the small decoder that proposes tokens; None without one.

    Raises:
        UsageError: the model is no decoder, has inputs whose meaning is not known, or is not placed for texts of one row; or
            the draft does not fit it.
        FileError, ModelError: the tokenizer cannot be read.
    """

    def __init__(
        self,
        server: Server,
        model: Model,
        tokenizer: Tokenizer | None = None,
        draft: TextModel | None = None,
        *,
        chunk: int | None = None,
    ) -> None:
        inputs = {spec.name: spec for spec in model.inputs}
        logits = next((spec for spec in model.outputs if spec.name == _LOGITS), None)
        unknown = [name for name, spec in inputs.items() if name not in KNOWN or len(spec.shape) > len(("batch", "tokens"))]
        rank = len(("batch", "tokens", "vocabulary"))
        if "input_ids" not in inputs or logits is None or len(logits.shape) != rank or not model.states or unknown:
            more = f" Its input '{unknown[0]}' is not known." if unknown else ""
            raise UsageError(
                f"{model.path} does not generate text: it is no decoder with state, input_ids and {_LOGITS} of rank "
                f"{rank}.{more}"
            )
        self.server, self._inputs = server, inputs
        self.step = _max_tokens(model.path, inputs["input_ids"])
        self.context = _max_tokens(model.path, inputs.get("attention_mask", inputs["input_ids"]))
        self.chunk = min(self.step, CHUNK if chunk is None else chunk)
        self.tokenizer = Tokenizer(tokenizer_folder(model.path)) if tokenizer is None else tokenizer
        self.vocabulary = int(logits.shape[-1])
        self.prefixes = Prefixes(server, self.read)
        self.stepping = set[object]()
        self.draft = None if draft is None else self._draft_by(draft, model)

    def _draft_by(self, small: TextModel, model: Model) -> Draft:
        if model.logits != "all":
            raise UsageError(f"{model.path} computes the logits of the last token of a step alone: place it with --logits all.")
        if small.tokenizer.vocabulary != self.tokenizer.vocabulary:
            raise UsageError(f"The tokens of {small.tokenizer.folder} are not the tokens of {model.path}: give another draft.")
        why = [one.why for one in (*small.server.stepping, *self.server.stepping) if one.why is not None]
        if why:  # joined steps have shown that the mask hides columns of the state
            raise UsageError(f"A draft needs decoders whose steps can be joined, and they cannot, as {why[0]}.")
        return Draft(small.server.sequence(), small.read, small.context, min(small.vocabulary, self.vocabulary))

    def room(self, prompt: Sequence[int], wanted: Wanted) -> int:
        """Return the largest number of tokens that may follow a prompt.

        Raises:
            UsageError: the prompt is empty or too long, or has a token that the model does not know.
        """
        if not prompt:
            raise UsageError("The prompt has no tokens: give a text to continue.")
        if max(prompt) >= self.vocabulary:
            raise UsageError(
                f"The prompt has the token {max(prompt)}, and the model knows {self.vocabulary}: leave out special tokens of "
                f"other models, or give the tokenizer of this one in {self.tokenizer.folder}."
            )
        room = self.context - len(prompt) + 1  # the last token need not be read again
        if room < 1 or (wanted.most or 1) > room:
            raise UsageError(
                f"The prompt has {len(prompt)} tokens, and {wanted.most or 1} more exceed the model's context of "
                f"{self.context}: shorten the prompt or the answer, or place the model for a longer --context."
            )
        return wanted.most or room

    def generate(self, prompt: Sequence[int], wanted: Wanted = Wanted()) -> Generator[Piece, None, None]:
        """Generate the text that follows a prompt; yield a piece for each token. Closing the iterator ends the text.

        Args:
            prompt: its tokens, as :meth:`Tokenizer.encode` or :meth:`Tokenizer.chat` return them.
            wanted: when the text ends, and how tokens are chosen.

        Raises:
            UsageError: the prompt is empty or too long, or has a token that the model does not know.
            StateMemoryError: there is no memory for the state of another text.
            ExecutionError: a device fails, or computes no numbers.
        """
        with contextlib.closing(self.generate_all([prompt], wanted)) as pieces:
            for _, piece in pieces:
                if piece.error is not None:
                    raise piece.error
                yield piece

    def generate_all(
        self, prompts: Sequence[Sequence[int]], wanted: Wanted = Wanted(), *, at_once: int = AT_ONCE
    ) -> Generator[tuple[int, Piece], None, None]:
        """Generate the texts that follow several prompts, side by side: the server joins their steps where the model allows it.

        Yield a piece for each token, with the index of its text. Texts begin in the order of the prompts, and a text that is
        shorter ends earlier. A text whose state is lost, as a device fails or a node is lost, has it computed anew from its
        tokens, and goes on. A text that fails ends with a piece that has the error, and the other texts go on: its prompt is
        empty or too long, or has a token that the model does not know; nothing is left that runs it; or there is no memory
        for its state. Closing the iterator ends all texts.

        Args:
            prompts: the tokens of each.
            wanted: when a text ends, and how its tokens are chosen; the seed of text ``i``, from 0, is the seed plus ``i``.
            at_once: most texts that are generated at the same time.

        Raises:
            UsageError: ``at_once`` is less than 1.
        """
        if at_once < 1:
            raise UsageError(f"The number of texts at the same time is {at_once}; it must be at least 1.")
        pending = deque(enumerate(self._each_wanted(prompts, wanted)))
        running, waits = dict[int, _Text](), True
        made: _Made = SimpleQueue()
        try:
            while pending or running:
                while pending and len(running) < at_once:
                    number, one = pending.popleft()
                    if isinstance(one, UsageError):
                        yield number, Piece("", 0, "error", one)
                        continue
                    running[number] = _Text(number, self, self.server, prompts[number], one, made)
                    running[number].submit()
                try:
                    number, piece = made.get(timeout=None if wanted.left is None else CHECK_S)
                except Empty:
                    if wanted.left is not None and wanted.left():
                        return
                    continue
                if piece is None:
                    running[number].submit()
                    continue
                if isinstance(piece, PlaceitError):
                    piece = Piece("", running[number].count, "error", piece)
                elif isinstance(piece, Exception):
                    raise piece
                else:
                    running[number].was_read()
                if piece.end is not None:
                    running.pop(number).close()
                yield number, piece
        except KeyboardInterrupt:
            waits = False
            raise
        finally:
            for text in running.values():
                text.close(wait=waits)

    def _each_wanted(self, prompts: Sequence[Sequence[int]], wanted: Wanted) -> Iterator[Wanted | UsageError]:
        """Yield what is wanted of each text, with its number of tokens and its seed, or why its prompt cannot be continued."""
        for number, prompt in enumerate(prompts):
            seed = wanted.sampling.seed
            sampling = replace(wanted.sampling, seed=None if seed is None else seed + number)
            try:
                yield replace(wanted, most=self.room(prompt, wanted), sampling=sampling)
            except UsageError as error:
                yield error

    def read(self, sequence: ServedSequence, tokens: Sequence[int], past: int, hidden: Sequence[int] = ()) -> list[Answer]:
        """Submit tokens that follow ``past`` others in a sequence; return the answers, of which the last has the next logits.

        Columns of the state that are ``hidden`` hold tokens that were read and taken back.

        A long prompt is submitted in chunks, which several devices compute at the same time, and between which other texts have
        their steps.
        """
        longest = self.chunk if sequence.at_once > 1 or self.stepping else self.step
        return [
            sequence.submit(self.inputs_of(tokens[first : first + longest], past + first, hidden))
            for first in range(0, len(tokens), longest)
        ]

    def inputs_of(self, tokens: Sequence[int], past: int, hidden: Sequence[int] = ()) -> dict[str, NDArray[np.generic]]:
        """Return the inputs of the decoder for tokens that follow ``past`` others, and ``hidden`` columns of the state."""
        return step_inputs(tokens, past, self._inputs, hidden)


_Made: TypeAlias = SimpleQueue[tuple[int, Piece | Exception | None]]
"""What texts pass on to their reader, each with its number: pieces, an error, or None if the reader has to submit a step."""


class _Text:
    """A text that is being generated.

    The thread of the server that ends a step also chooses the token and submits the next step. So the steps of several texts
    that have run together wait together, and no time passes in between. The text is generated at most a few pieces ahead of
    its reader.

    Args:
        number: number of the text, which accompanies everything that is put into ``made``.
        model: the decoder.
        server: the server that runs the decoder.
        prompt: tokens of the prompt.
        wanted: when the text ends, with ``most`` set.
        made: queue for the text's pieces, and for the error if it fails.

    Attributes:
        count: number of tokens generated so far.
    """

    def __init__(
        self, number: int, model: TextModel, server: Server, prompt: Sequence[int], wanted: Wanted, made: _Made
    ) -> None:
        self._number, self._model, self._server, self._made = number, model, server, made
        self._sampler, self._stops, self._max_tokens = Sampler(wanted.sampling), Stops(wanted.stop), wanted.most
        self._decode = model.tokenizer.decoder(prompt)
        self._tokens, self._past, self.count, self._losses = list(prompt), 0, 0, 0
        self._lock = threading.Lock()
        self._unread = 0
        self._answers: list[Answer] = []  # of the step in flight, or of the prompt's chunks
        self._paused = self._closed = False
        self._sequence: ServedSequence | None = None
        self._hidden: list[int] = []  # columns of the state with tokens that were taken back
        self._proposed: Sequence[int] = ()  # in the step in flight
        self._uses_draft = True
        self._step_start = 0.0  # start of the step in flight, by perf_counter

    def submit(self) -> None:
        """Submit the next step, on the thread of the reader.

        This is the first step; a step that has waited for the reader or for the server's queue; or, if the state was lost, a
        step that reads all tokens so far.
        """
        try:
            if self._sequence is None:
                self._sequence, self._past = self._model.prefixes.begin(self._tokens)
            elif self._sequence.line.lost is not None:
                self._reset_state(self._sequence)
            self._submit(self._sequence)
        except PlaceitError as error:
            self._made.put((self._number, error))

    def _reset_state(self, sequence: ServedSequence) -> None:
        sequence.reset()
        self._past, self._hidden = 0, []

    def _submit(self, sequence: ServedSequence) -> None:
        room, draft = self._model.context - len(self._tokens) - len(self._hidden), self._model.draft
        if room < 0:  # for what is hidden
            self._reset_state(sequence)
            self._uses_draft = False
        self._step_start, most = perf_counter(), min(room, (self._max_tokens or 0) - self.count - 1)
        drafts = self._uses_draft and len(self._model.stepping) == 1 and self._past == len(self._tokens) - 1
        if draft is None or not drafts or not draft.propose(self._tokens, most, partial(self._continue, sequence)):
            self._read(sequence, ())

    def _continue(self, sequence: ServedSequence, proposed: Sequence[int]) -> None:
        """Submit the tokens that the draft has proposed, to be checked. A thread of the draft's server calls this."""
        with self._queueing_errors(sequence):
            self._read(sequence, proposed)

    def _read(self, sequence: ServedSequence, proposed: Sequence[int]) -> None:
        tokens, self._proposed = [*self._tokens[self._past :], *proposed], proposed
        with self._lock:
            if self._closed:
                return
            self._answers = self._model.read(sequence, tokens, self._past, self._hidden)
        self._past = len(self._tokens)
        self._answers[-1].add_done_callback(partial(self._on_step_end, sequence))

    def was_read(self) -> None:
        """Count a piece as read, and resume the text if it was paused for its reader."""
        with self._lock:
            self._unread -= 1
            resumes = self._paused and self._unread < _MAX_UNREAD
            self._paused &= not resumes
        if resumes:
            self.submit()

    def close(self, *, wait: bool = True) -> None:
        """End the text and release its state. With ``wait``, wait for running steps, except on a thread of the server."""
        with self._lock:
            self._closed = True
        self._model.stepping.discard(self)
        left = [answer for answer in self._answers if not answer.cancel()]
        if wait and not self._server.is_here:
            for answer in left:
                answer.exception()
        if self._sequence is not None:
            self._sequence.close(drain=False)

    def _on_step_end(self, sequence: ServedSequence, answer: Future[Outputs]) -> None:
        """Choose the token after a step that has ended, and submit the next step. The thread that ended the step calls this."""
        if self._closed:
            return
        with self._queueing_errors(sequence):
            for chunk in self._answers:
                if chunk.done():  # or a chunk behind it was refused
                    chunk.result()
            continues = self._choose_tokens(answer.result())
            with self._lock:
                self._paused = continues and self._unread >= _MAX_UNREAD
            if continues and not self._paused:
                self._submit(sequence)

    @contextlib.contextmanager
    def _queueing_errors(self, sequence: ServedSequence) -> Iterator[None]:
        try:
            yield
        except QueueFullError:
            self._made.put((self._number, None))  # the reader waits for room
        except Exception as error:  # noqa: BLE001 (it is for the reader)
            recovers = sequence.line.lost is not None and self._losses < _MAX_LOSSES
            self._losses += recovers
            self._made.put((self._number, None if recovers else error))

    def _put_piece(self, piece: Piece) -> None:
        with self._lock:
            self._unread += 1
        self._made.put((self._number, piece))

    def _choose_tokens(self, outputs: Outputs) -> bool:
        """Choose the tokens after a step, and put their pieces into the queue; return whether the text continues.

        A step has logits after each token that was proposed. A proposal counts if it is the token that is chosen there.
        """
        first, count = len(self._tokens), len(self._proposed)
        for place, proposed in enumerate((*self._proposed, None)):
            if not self._append(self._sampler.choose(np.asarray(outputs[_LOGITS])[0, place - count - 1])):
                return False
            if self._tokens[-1] != proposed:
                break
        kept, columns = len(self._tokens) - first - 1, first + len(self._hidden)
        self._hidden += range(columns + kept, columns + count)
        self._past = len(self._tokens) - 1
        if self._model.draft is not None and self._uses_draft and len(self._model.stepping) == 1:
            self._model.draft.record_step(count, kept, perf_counter() - self._step_start)
        return True

    def _append(self, token: int) -> bool:
        """Append the next token, and put its piece into the queue; return whether the text continues."""
        self.count, self._losses = self.count + 1, 0
        self._model.stepping.add(self)
        if token in self._model.tokenizer.ends:
            self._put_piece(Piece(self._stops.rest(), self.count, "stop"))
            return False
        text, stopped = self._stops.pass_on(self._decode(token))
        if stopped or self.count == self._max_tokens:
            text = text if stopped else text + self._stops.rest()
            self._put_piece(Piece(text, self.count, "stop" if stopped else "length"))
            return False
        self._tokens.append(token)
        self._put_piece(Piece(text, self.count))
        return True


def _max_tokens(path: Path, tokens: TensorSpec) -> int:
    """Return the largest number of tokens of an input. Raises UsageError if the input cannot hold one token of one text."""
    limits = tokens.limits or tuple((size, size) for size in tokens.shape)
    if not limits[0][0] <= 1 <= limits[0][1]:
        raise UsageError(f"{path} is placed for {limits[0][0]} texts in a step: place it for a batch of 1.")
    least, most = limits[-1]
    if least == most or least > 1:
        raise UsageError(
            f"{path} is placed for {least} to {most} tokens of '{tokens.name}', and a text takes 1 and more: place it with "
            "--context."
        )
    return most
