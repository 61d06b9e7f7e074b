"""Something that goes on while a test does something else."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(action: Callable[[], object]) -> Iterator[list[object]]:
    """Do something on another thread while the context is open; gives a list that has its result, or error, in the end."""
    results: list[object] = []

    def do() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            results.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield results
    finally:
        thread.join(60)
    assert not thread.is_alive()
