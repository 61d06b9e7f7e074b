"""A headless Chromium, and report pages in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

__all__ = ["TIMEOUT_S", "missing", "open_browser", "open_page"]

TIMEOUT_S = 120  # the machine may be busy
_PROGRAMS = ("chromium", "chromedriver")
_READY = "return window.Bokeh !== undefined && Bokeh.documents.length > 0 && Bokeh.documents.every((one) => one.is_idle)"
_TRIES = 3


def missing() -> str:
    """Return what is to be installed for a browser; empty if nothing is."""
    lacking = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not found: apt-get install chromium chromium-driver" if lacking else ""


def open_browser() -> Any:
    """Start a browser; the caller quits it."""
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    binary, driver = map(shutil.which, _PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = binary or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    for left in reversed(range(_TRIES)):
        try:
            browser = webdriver.Chrome(options=options, service=Service(driver))
            break
        except WebDriverException:  # on a busy machine, it may not have answered in time
            if not left:
                raise
    browser.set_page_load_timeout(TIMEOUT_S)
    browser.set_script_timeout(TIMEOUT_S)
    return browser


def open_page(browser: Any, page: Path, *, width: int = 1280, dark: bool = False) -> None:
    """Open a report page, and wait until all of it is drawn.

    Args:
        browser: from :func:`open_browser`.
        page: the file.
        width: of the window, in CSS pixels.
        dark: whether the system asks for dark pages.
    """
    from selenium.webdriver.support.ui import WebDriverWait

    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("browser")  # what the page before said
    browser.get(page.as_uri())
    WebDriverWait(browser, TIMEOUT_S).until(lambda driver: driver.execute_script(_READY))
