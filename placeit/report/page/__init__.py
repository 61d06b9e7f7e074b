"""Write a recording as a self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from placeit.core.extras import need
from placeit.core.files import write_text

if TYPE_CHECKING:
    from placeit.profiler.recording import Recording

__all__ = ["check_page", "write_page"]


def check_page() -> None:
    """Check that the packages for pages are installed. Raises UsageError with the extra to install."""
    need("The report page", "report", "bokeh", "jinja2")


def write_page(path: str | Path, recording: Recording) -> None:
    """Write an HTML page with the decision, timeline, utilisation, task graph, ops and other parts of a recording.

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
