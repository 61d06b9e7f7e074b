"""Keep the root logger as it is while libraries that change it run."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["kept_root_logger"]

_lock = threading.Lock()
_open_blocks = 0
_saved: tuple[int, list[Any], list[logging.Handler]] = 0, [], []


@contextlib.contextmanager
def kept_root_logger() -> Iterator[None]:
    """Restore level, filters and handlers of the root logger at the end of the block.

    OpenVINO's converter changes them, and leaves them changed when it fails. Blocks of several threads may overlap: the first
    one to begin saves them, and the last one to end restores them.
    """
    global _open_blocks, _saved
    root = logging.getLogger()
    with _lock:
        if not _open_blocks:
            _saved = root.level, root.filters[:], root.handlers[:]
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if not _open_blocks:
                level, root.filters[:], root.handlers[:] = _saved
                root.setLevel(level)
