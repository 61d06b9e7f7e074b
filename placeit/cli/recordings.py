"""Files that commands write from a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from placeit.cli.command import command_line
from placeit.cli.paths import OutputFile
from placeit.core.files import write_text
from placeit.report import as_csv

if TYPE_CHECKING:
    from placeit.profiler.recording import Recording

__all__ = ["files_of"]


def files_of(recording: Recording, paths: Mapping[str, Path | None]) -> list[OutputFile]:
    """Return the files to write, which name the running command.

    Args:
        recording: the recording.
        paths: files by content (``recording``, ``page``, ``trace``, ``csv``); None leaves one out.
    """
    from placeit.profiler.recording import write_recording
    from placeit.profiler.trace import write_recording_trace
    from placeit.report.page import write_page

    recording = replace(recording, environment={**recording.environment, "command": command_line()})

    def write_table(path: Path, recording: Recording) -> None:
        write_text(path, as_csv.recording(recording))

    writers: dict[str, tuple[str, Callable[[Path, Recording], None]]] = {
        "recording": ("the recording", write_recording),
        "page": ("the page", write_page),
        "trace": ("the trace", write_recording_trace),
        "csv": ("the table", write_table),
    }
    return [
        OutputFile(path, name, partial(write, path, recording))
        for what, (name, write) in writers.items()
        if (path := paths.get(what)) is not None
    ]
