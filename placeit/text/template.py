"""Chat templates. A model's template is a program, so it runs in a process with limited time and memory."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import process_time
from typing import Any

from placeit.core.errors import ModelError, UsageError
from placeit.core.extras import need

__all__ = ["Template", "run"]

_MAX_SECONDS = 2  # processor time for each prompt
_MAX_MEMORY = 1 << 30  # bytes that the process may map
_MAX_CHARACTERS = 1 << 22  # length of a prompt
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from placeit.text.template import run; run()"


class Template:
    """A chat template, which turns conversations into prompts. Several threads may render it.

    Args:
        source: the template, in the language of Jinja.
        named: special tokens that the template may use, by name.
        what: the template, for messages.

    Raises:
        UsageError: Jinja is not installed.
    """

    def __init__(self, source: str, named: Mapping[str, str], what: str) -> None:
        need("A chat template", "text", "jinja2")
        self._first, self._what = json.dumps([source, dict(named)]), what
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stop: Callable[[], object] = int

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt of a conversation.

        Raises:
            UsageError: the template refuses the messages.
            ModelError: the template is damaged, or takes too much time or memory.
        """
        request = json.dumps(messages, default=dict)
        with self._lock:
            try:
                process = self._process or self._start()
                kind, text = json.loads(self._exchange(process, request))
            except BaseException as error:  # a late answer must not be taken for the next request's
                self._stop()
                self._process = None
                if not isinstance(error, (OSError, ValueError)):
                    raise
                raise ModelError(
                    f"{self._what} takes more than {_MAX_SECONDS} s or {_MAX_MEMORY >> 20} MB for a prompt, or its process "
                    "cannot run: repair the template, or shorten the conversation."
                ) from error
        if kind == "damaged":
            raise ModelError(f"{self._what} is damaged: {text}.")
        if kind == "refused":
            raise UsageError(f"{self._what} refuses the messages: {text}.")
        return str(text)

    def _start(self) -> subprocess.Popen[str]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the commands alone
        )
        self._stop = weakref.finalize(self, _end, process)
        self._exchange(process, self._first)
        return process

    @staticmethod
    def _exchange(process: subprocess.Popen[str], line: str) -> str:
        """Pass a line to the process; return its answer, which is empty if the process has ended."""
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # the process does not read any more
                stream.close()
    process.wait()


def run() -> None:
    """Render prompts: of the lines of standard input, in JSON, the first has the template, and each further one a conversation.

    Each line has an answer on standard output.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    template: Any = None
    damage = ""
    for line in sys.stdin:
        end = int(process_time()) + _MAX_SECONDS  # the system ends the process then
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
        found, answer = json.loads(line), ("damaged", damage)
        try:
            if template is not None:
                text = template.render(messages=found, add_generation_prompt=True)
                answer = ("", text) if len(text) <= _MAX_CHARACTERS else ("refused", f"the prompt has {len(text):,} characters")
            elif not damage:
                template = _compiled(*found)
        except Exception as error:  # noqa: BLE001 (a template may raise any)
            why = str(error) or type(error).__name__
            damage = "" if template is not None else why
            answer = ("refused", why)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _compiled(source: str, named: dict[str, Any]) -> Any:
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    generation = type("Generation", (Extension,), {"tags": {"generation"}, "parse": _parse_generation})
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", generation]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment.from_string(source, named)


def _parse_generation(_: Any, parser: Any) -> Any:
    """Return the content of a block ``{% generation %}``, which marks the answers in a template for training."""
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise UsageError(message)
