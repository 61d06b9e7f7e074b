"""Write generated problems to files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from placeit.core.errors import FileError, UsageError
from placeit.core.files import replacing
from placeit.learning.workloads.datasets import Case

__all__ = ["INDEX", "export_cases"]

INDEX = "index.json"
"""Name of the index file, which lists the problem files."""


def export_cases(
    cases: Iterable[Case],
    folder: Path,
    name: str,
    facts: Mapping[str, Any],
    *,
    count: int | None = None,
    callback: Callable[[dict[str, Any]], object] | None = None,
) -> None:
    """Write each problem to its own file (:meth:`placeit.core.problem.Problem.to_json`), and an index of the files.

    Problems are written one by one and not kept in memory. The index holds ``facts``, and for each problem its file, its size
    and its parameters. After Ctrl-C, the files written so far remain, with an index of them. After any other error, all of them
    are deleted.

    Args:
        cases: problems to write. Without ``count``, the iterable must be finite.
        folder: folder to write to. It is made if it does not exist, and must be empty.
        name: prefix of the file names: ``name-000.json`` and so on.
        facts: entries of the index about all problems, such as kind and seed.
        count: number of problems to write; None for all.
        callback: called with the file and the size of each problem after it is written.

    Raises:
        FileError: the folder is not empty, or cannot be written to.
        UsageError: there are fewer than ``count`` problems.
    """
    remaining = islice(cases, count)
    first = next(remaining, None)  # wrong parameters raise here, before there is anything to clean up
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise FileError(f"Cannot write to the folder {folder}: {error.strerror or error}. Choose another place.") from error
    if occupied:
        raise FileError(f"The folder {folder} is not empty; name a new one, so that old and new problems do not mix.")
    written = 0
    try:
        with contextlib.ExitStack() as stack:
            index = stack.enter_context(stack.enter_context(replacing(folder / INDEX)).open("w", encoding="utf-8"))
            header = json.dumps({"format": "placeit-problems", "version": 1, **facts}, indent=1, allow_nan=False)
            index.write(f'{header[:-2]},\n "problems": [')
            interrupt = None
            try:
                for case in chain([] if first is None else [first], remaining):
                    problem, file = case.problem, _file(name, written)
                    problem.to_json(folder / file, sync=False)  # one of many; the index, written last, is synced
                    entry = {"file": file, "ops": len(problem), "edges": len(problem.edges), "devices": problem.devices}
                    line = json.dumps({**entry, "parameters": case.parameters}, allow_nan=False)
                    index.write(f"{',' if written else ''}\n  {line}")
                    written += 1
                    if callback is not None:
                        callback(entry)
                if count is not None and written < count:
                    raise UsageError(f"There are only {written} problems of kind '{name}' for one seed; lower --count.")
            except KeyboardInterrupt as error:
                interrupt = error
            index.write("\n ]\n}\n")
        if interrupt is not None:
            raise interrupt
    except KeyboardInterrupt:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            for number in range(written + 1):
                (folder / _file(name, number)).unlink(missing_ok=True)
            for path in missing:
                path.rmdir()
        raise


def _file(name: str, number: int) -> str:
    return f"{name}-{number:03d}.json"
