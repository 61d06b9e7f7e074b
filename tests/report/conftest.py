from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from placeit.profiler.recording import Recording
from placeit.report.page import write_page
from tests import browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium; the tests skip without one, but not in CI, which installs it."""
    if why := browser.missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    driver = browser.open_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def browse(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Write the page of a recording, open it, and wait until all of it is drawn."""

    def opened(recording: Recording, *, width: int = 1280, dark: bool = False) -> Any:
        page = tmp_path_factory.mktemp("page") / "report.html"
        write_page(page, recording)
        browser.open_page(chromium, page, width=width, dark=dark)
        return chromium

    return opened
