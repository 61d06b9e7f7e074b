"""The interface for texts that clients of OpenAI's speak: ``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from placeit.core.errors import ExecutionError, PlaceitError
from placeit.serve.bodies import Bodies
from placeit.serve.http_connection import on_leave
from placeit.serve.http_extensions import Handler
from placeit.serve.refusal import RefusedError, Status, invalid, refusal_of
from placeit.serve.service import Service, about_to_end
from placeit.text.generating import Piece, TextModel, Wanted
from placeit.text.sampling import Sampling

__all__ = ["text_routes"]

Fields: TypeAlias = Mapping[str, Any]
Numbered: TypeAlias = tuple[int, Piece]
"""A piece of a text, with the number of the text in its request."""

_LOG = logging.getLogger("placeit")
_MAX_BYTES = 1 << 20  # of a request
_AT_ONCE = 64  # most texts that are generated at a time; each has a thread, which mostly waits for devices
_DEFAULT_TOKENS = 16  # of a completion, as OpenAI's server has it
_NOT_HERE: Mapping[str, object] = {  # parameters that would change the answer, and their values that do not
    **dict.fromkeys(("audio", "functions", "logit_bias", "stop_token_ids", "suffix", "tools")),
    **dict.fromkeys(("echo", "ignore_eos", "logprobs"), False),
    **dict.fromkeys(("frequency_penalty", "min_p", "min_tokens", "presence_penalty", "top_logprobs"), 0),
    **dict.fromkeys(("best_of", "repetition_penalty"), 1),
    "response_format": {"type": "text"},
}

_JSON_TYPES = {bool: "true or false", str: "a string", list: "an array", dict: "an object", int: "a number"}


def text_routes(service: Service, bodies: Bodies) -> list[Route]:
    """Return the routes for models that generate texts; none if no model does.

    Args:
        service: whose models they are.
        bodies: reads the bodies of requests.
    """
    models = {model.name: model.text for model in service.models if model.text is not None}
    if not models:
        return []
    texts, begun = _Texts(service, models), int(time.time())

    def about(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": begun, "owned_by": "placeit"}

    async def listed(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [about(name) for name in models]})

    async def described(request: Request) -> Response:
        return JSONResponse(about(texts.found(request.path_params["model"])[0]))

    def answering(kind: type[_Completion]) -> Handler:
        async def answer(request: Request) -> Response:
            with contextlib.closing(await bodies.read(request, _MAX_BYTES)) as body:
                fields = await service.by_size(len(body.data), _fields, body.data)
            return await texts.answer(kind, fields, request)

        return answer

    return [
        Route("/v1/models", listed, methods=["GET"]),
        Route("/v1/models/{model}", _refusing(described), methods=["GET"]),
        Route("/v1/completions", _refusing(answering(_Completion)), methods=["POST"]),
        Route("/v1/chat/completions", _refusing(answering(_Chat)), methods=["POST"]),
    ]


def _refusing(handler: Handler) -> Handler:
    """Return a handler that answers refusals as the interface has them."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusedError as error:
            return JSONResponse(_error(error), error.status.http)

    return answer


def _error(error: RefusedError) -> dict[str, Any]:
    kind = "invalid_request_error" if 400 <= error.status.http < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.status.name.lower()}}


def _fields(body: memoryview) -> Fields:
    """Read the body of a request. Raises RefusedError."""
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise invalid(f"The body is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise invalid("The body must be a JSON object.")
    for name, off in _NOT_HERE.items():
        value = found.get(name)
        asks = (value != off and (value or off)) or (name == "logprobs" and value is not off)  # 0 asks for the chosen tokens'
        if value is not None and asks:
            but = f", or set it to {json.dumps(off)}" if off else ""
            raise invalid(f"The parameter '{name}' is not supported: leave it out{but}.")
    return found


def _field(fields: Fields, name: str, kinds: type | tuple[type, ...], default: Any) -> Any:
    """Return a field of a request, or the default if it is missing or null. Raises RefusedError if it has another type."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        expected = [said for kind, said in _JSON_TYPES.items() if kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        raise invalid(f"'{name}' is {json.dumps(value)[:100]}; it must be {' or '.join(expected)}.")
    return value


class _Completion:
    """Texts that continue prompts, as ``/v1/completions`` returns them.

    Args:
        model: generates the texts.
        name: name of the model.
        fields: fields of the request.

    Attributes:
        prompts: tokens of the prompt of each text.
        wanted: when the texts end.
        stream: whether the client wants each token as it is generated.
        with_usage: whether a stream ends with the numbers of tokens.

    Raises:
        RefusedError, UsageError, OverflowError: the fields do not make a request.
        ModelError: the model's chat template is damaged.
    """

    kind, prefix = "text_completion", "cmpl"
    chunk = kind
    most: int | None = _DEFAULT_TOKENS
    """Most tokens of a text if the request does not say; None for all that the context has room for."""

    def __init__(self, model: TextModel, name: str, fields: Fields) -> None:
        self.model, self._name = model, name
        self._id, self._created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        number = (int, float)
        stop = _field(fields, "stop", (str, list), [])
        stop = [stop] if isinstance(stop, str) else stop
        if not all(isinstance(one, str) for one in stop):
            raise invalid("'stop' must be a string or a list of strings.")
        sampling = Sampling(
            temperature=float(_field(fields, "temperature", number, 1.0)),
            top_p=float(_field(fields, "top_p", number, 1.0)),
            top_k=max(0, _field(fields, "top_k", int, 0)),  # others' servers have -1 for all
            seed=_field(fields, "seed", int, None),
        )
        prompts, texts = self._prompts(fields), _field(fields, "n", int, 1)
        if not 1 <= (asked := texts * len(prompts)) <= _AT_ONCE:
            raise invalid(f"The request asks for {asked} texts; it must be at least one, and at most {_AT_ONCE}.")
        most = self._asked_most(fields)
        if most is None and self.most is not None:
            most = self.most if len(prompts) > 1 else min(self.most, model.room(prompts[0], Wanted()))
        self.wanted = Wanted(most, stop, sampling)
        for prompt in prompts:
            model.room(prompt, self.wanted)
        self.prompts = [prompt for prompt in prompts for _ in range(texts)]
        self._prompt_tokens = sum(map(len, prompts))
        self.stream = _field(fields, "stream", bool, False)
        self.with_usage = bool(_field(fields, "stream_options", dict, {}).get("include_usage"))

    def _asked_most(self, fields: Fields) -> int | None:
        most: int | None = _field(fields, "max_tokens", int, None)
        return most

    def _prompts(self, fields: Fields) -> list[list[int]]:
        """Return the tokens of each prompt, before each is repeated ``n`` times."""
        given = fields.get("prompt")
        every = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
        if len(every) > _AT_ONCE:
            raise invalid(f"The request has {len(every)} prompts; it may have at most {_AT_ONCE}.")
        return [self._tokens(one) for one in every]

    def _tokens(self, given: object) -> list[int]:
        if isinstance(given, str):
            return self.model.tokenizer.encode(given)
        if not isinstance(given, list) or not all(type(one) is int and 0 <= one < self.model.vocabulary for one in given):
            raise invalid("'prompt' must be a string, a list of the model's tokens, or a list of these.")
        return given

    def whole(self, pieces: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        """Return the answer with the whole texts, given all pieces of each."""
        choices = [self._choice(i, "".join(piece.text for piece in of), of[-1].end) for i, of in enumerate(pieces)]
        return self._object(self.kind, choices) | {"usage": self._usage(sum(of[-1].tokens for of in pieces))}

    def first(self) -> list[dict[str, Any]]:
        """Return the chunks with which a stream begins, before the first piece."""
        return []

    def part(self, number: int, piece: Piece) -> dict[str, Any]:
        """Return a chunk of a stream, given a piece and the number of its text."""
        return self._object(self.chunk, [self._choice_of(number, piece)])

    def last(self, tokens: int) -> dict[str, Any]:
        """Return the chunk that ends a stream if the client wants to know numbers of tokens."""
        return self._object(self.chunk, []) | {"usage": self._usage(tokens)}

    def _choice(self, number: int, text: str, end: str | None) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": None, "finish_reason": end}

    def _choice_of(self, number: int, piece: Piece) -> dict[str, Any]:
        return self._choice(number, piece.text, piece.end)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name, "choices": choices}

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = self._prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


class _Chat(_Completion):
    """The next message of a conversation, as ``/v1/chat/completions`` returns it."""

    kind, prefix = "chat.completion", "chatcmpl"
    chunk = "chat.completion.chunk"
    most = None

    def _asked_most(self, fields: Fields) -> int | None:
        most: int | None = _field(fields, "max_completion_tokens", int, super()._asked_most(fields))
        return most

    def _prompts(self, fields: Fields) -> list[list[int]]:
        messages = fields.get("messages")
        every = messages if isinstance(messages, list) else []
        if not every or not all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in every):
            raise invalid("'messages' must be a list of messages, each with a 'role' and its 'content'.")
        return [self.model.tokenizer.chat([{**one, "content": _plain(one.get("content"))} for one in every])]

    def first(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._object(self.chunk, [self._delta(number, delta, None)]) for number in range(len(self.prompts))]

    def _choice(self, number: int, text: str, end: str | None) -> dict[str, Any]:
        return {"index": number, "message": {"role": "assistant", "content": text}, "logprobs": None, "finish_reason": end}

    def _choice_of(self, number: int, piece: Piece) -> dict[str, Any]:
        return self._delta(number, {"content": piece.text} if piece.text else {}, piece.end)

    def _delta(self, number: int, delta: dict[str, str], end: str | None) -> dict[str, Any]:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": end}


def _plain(content: object) -> str:
    """Return the content of a message, which may be in parts. Raises RefusedError if it is not text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [content]
    if not all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        raise invalid("The content of a message must be text: the models of this server read nothing else.")
    return "".join(part["text"] for part in parts if isinstance(part, dict))


class _Texts:
    """Generates the texts of requests; each request has a thread."""

    def __init__(self, service: Service, models: Mapping[str, TextModel]) -> None:
        self._service, self._models = service, models
        self._turns = {name: asyncio.Lock() for name in models}  # so that one model's prompts do not occupy all threads
        self._running = 0

    def found(self, name: object) -> tuple[str, TextModel]:
        """Return a model with its name. Raises RefusedError."""
        if not isinstance(name, str) or name not in self._models:
            known = ", ".join(f"'{known}'" for known in self._models)
            raise RefusedError(Status.UNKNOWN, f"No model {json.dumps(name)[:100]} generates text here; these do: {known}.")
        return name, self._models[name]

    async def answer(self, kind: type[_Completion], fields: Fields, request: Request) -> Response:
        """Answer a request. Raises RefusedError."""
        name, model = self.found(fields.get("model"))
        try:
            async with self._turns[name]:
                if self._service.draining:
                    raise about_to_end()
                asked = await self._service.apart(kind, model, name, fields)
        except RefusedError:
            raise
        except PlaceitError as error:
            raise refusal_of(error) from error
        except OverflowError as error:
            raise invalid(f"A number of the request is too large: {error}.") from error
        pieces = self._pieces(name, asked)
        try:
            head = await _first(pieces, request)  # a refusal before the first token has another status than 200
        except BaseException:
            await pieces.aclose()
            raise
        if asked.stream:
            return StreamingResponse(_events(asked, head, pieces), media_type="text/event-stream")
        async with contextlib.aclosing(pieces):
            found: list[list[Piece]] = [[] for _ in asked.prompts]
            found[head[0]].append(head[1])
            async for number, piece in pieces:
                found[number].append(piece)
                if await request.is_disconnected():
                    raise _gone()
        return JSONResponse(asked.whole(found))

    async def _pieces(self, name: str, asked: _Completion) -> AsyncGenerator[Numbered, None]:
        """Yield the pieces of texts, each with the number of its text; closing the iterator ends the texts.

        Raises:
            RefusedError: a text has failed.
        """
        loop, queue, gone = asyncio.get_running_loop(), asyncio.Queue[Numbered | PlaceitError | None](), threading.Event()
        accepted, texts = contextlib.ExitStack(), len(asked.prompts)

        def on_loop(function: Callable[[Any], None], what: Numbered | PlaceitError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(function, what)

        def ended(error: PlaceitError | None) -> None:
            queue.put_nowait(error)
            self._running -= texts
            with contextlib.suppress(PlaceitError), accepted:
                if error is not None:
                    raise error

        def work() -> None:
            failed: PlaceitError | None = None
            try:
                with contextlib.closing(asked.model.generate_all(asked.prompts, wanted, at_once=texts)) as pieces:
                    for number, piece in pieces:
                        if gone.is_set():
                            raise _gone()
                        if piece.error is not None:
                            raise piece.error
                        on_loop(queue.put_nowait, (number, piece))
            except PlaceitError as error:
                failed = error
            except Exception as error:  # noqa: BLE001 (the client waits for an answer)
                _LOG.error("A text has failed: %s: %s", type(error).__name__, error)
                failed = ExecutionError("This text has failed in the server, whose log says why.")
            on_loop(ended, failed)

        wanted = replace(asked.wanted, left=gone.is_set)
        if self._running + texts > _AT_ONCE:
            raise RefusedError(Status.FULL, f"This server generates {_AT_ONCE} texts at a time: ask again later.")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._service.accepted(name))
            threading.Thread(target=work, name="placeit text", daemon=True).start()
            self._running += texts
            accepted.push(stack.pop_all())  # until the thread has ended, which may be after the client has left
        try:
            while (piece := await queue.get()) is not None:
                if isinstance(piece, PlaceitError):
                    raise piece if isinstance(piece, RefusedError) else refusal_of(piece) from piece
                yield piece
        finally:
            gone.set()


async def _first(pieces: AsyncGenerator[Numbered, None], request: Request) -> Numbered:
    """Return the first piece of the texts. Raises RefusedError, also if the client leaves before."""
    waiting = asyncio.ensure_future(anext(pieces))
    stay = on_leave(request.scope, waiting.cancel)
    try:
        await asyncio.wait([waiting])
    finally:
        stay()
        if waiting.cancel():
            await asyncio.wait([waiting])
    if waiting.cancelled():
        raise _gone()
    return waiting.result()


def _gone() -> RefusedError:
    return RefusedError(Status.GONE, "The client has gone.")


async def _events(asked: _Completion, head: Numbered, pieces: AsyncGenerator[Numbered, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream."""
    async with contextlib.aclosing(pieces):
        try:
            for first in asked.first():
                yield _event(first)
            yield _event(asked.part(*head))
            tokens = 1
            async for number, piece in pieces:
                tokens += 1
                if piece.text or piece.end:
                    yield _event(asked.part(number, piece))
            if asked.with_usage:
                yield _event(asked.last(tokens))
        except RefusedError as error:
            yield _event(_error(error))
        yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
