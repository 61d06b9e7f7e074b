"""A child process for work that may crash or hang. It is replaced when it does."""

from __future__ import annotations

import multiprocessing
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Child", "Ended", "peak_memory"]

_START_S = 240.0


class Ended(Exception):  # noqa: N818 (the name says what happened)
    """The child process has ended.

    Attributes:
        status: ``crashed`` or ``hung``.
        doing: the last message about what the process was doing.
        words: the first lines of its log, and its exit code or signal.
    """

    def __init__(self, status: str, doing: str, words: str) -> None:
        super().__init__(f"{status} in: {doing}; {words}")
        self.status, self.doing, self.words = status, doing, words


class Child:
    """A process that answers requests and is replaced when it ends. Use it as a context manager.

    Args:
        folder: folder for the log of the process.
        serve: function that the process runs, called with a connection, the path of the log and ``arguments``. It sends one
            greeting, then receives requests until it receives None. For each request it sends strings (what it is doing) and
            one answer (not a string).
        arguments: picklable arguments.
        case_s: longest time between two messages.
        most: number of requests after which the process is replaced, because loaded data stays in its memory.

    Attributes:
        greeting: the first message of the process.
    """

    def __init__(
        self,
        folder: Path,
        serve: Callable[..., None],
        arguments: tuple[Any, ...] = (),
        *,
        case_s: float = 60.0,
        most: int = 400,
    ) -> None:
        self._folder, self._serve, self._arguments, self._case_s, self._most = folder, serve, arguments, case_s, most
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._end()

    def ask(self, request: Any) -> Any:
        """Return the answer to a request. Raises Ended if the process ends without an answer."""
        if self._done == self._most:
            self._end()
        if self._process is None:
            self._begin()
        self._done += 1
        doing, status = "", "hung"
        try:
            self._connection.send(request)
            while self._connection.poll(self._case_s):
                answer = self._connection.recv()
                if not isinstance(answer, str):
                    return answer
                doing = answer
        except (EOFError, OSError):
            self._process.join()
            status = "crashed"
        ended = Ended(status, doing, self._last_words())
        self._end()
        raise ended

    def _begin(self) -> None:
        self._connection, theirs = self._context.Pipe()
        self._log = self._folder / "log.txt"
        self._process = self._context.Process(target=self._serve, args=(theirs, str(self._log), *self._arguments))
        self._process.start()
        theirs.close()
        self._done = 0
        try:
            greeted = self._connection.poll(_START_S)
            self.greeting = self._connection.recv() if greeted else None
        except (EOFError, OSError):
            greeted = False
        if not greeted:
            self._end()
            raise RuntimeError("The child process did not start.")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def _last_words(self) -> str:
        code = self._process.exitcode
        how = "" if code is None else f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{how} {' / '.join(lines[:3])}"[:300]


def peak_memory(*, reset: bool = False) -> int:
    """Return the peak of the process's memory in bytes; with ``reset``, reset the peak to the present number first."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024
