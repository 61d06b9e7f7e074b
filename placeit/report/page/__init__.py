"""Write a recording as one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from placeit.core.extras import need
from placeit.core.files import write_text

if TYPE_CHECKING:
    from placeit.profiler.recording import Recording

__all__ = ["check_page", "write_page"]


def check_page() -> None:
    """Check that the packages that draw pages are installed. Raises UsageError, which says what to install."""
    need("The report page", "report", "bokeh", "jinja2")


def write_page(path: str | Path, recording: Recording) -> None:
    """Write a page of a recording: decision, timeline, utilisation, task graph, ops and more, as far as recorded.

    Args:
        path: the file, ``*.html``.
        recording: the recording.

    Raises:
        UsageError: Bokeh is not installed.
        FileError: the file cannot be written.
    """
    check_page()
    from placeit.report.page.document import render

    write_text(Path(path), render(recording))
