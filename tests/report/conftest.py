from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from placeit.profiler.recording import Recording
from placeit.report.page import write_page

_READY = "return window.Bokeh !== undefined && Bokeh.documents.length > 0 && Bokeh.documents.every((one) => one.is_idle)"
_TIMEOUT_S = 120  # the machine may be busy
_TRIES = 3


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium; the tests skip without one, but not in CI, which installs it."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        why = f"{' and '.join(missing)} not found: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    for left in reversed(range(_TRIES)):
        try:
            driver = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
            break
        except WebDriverException:  # on a busy machine, it may not have answered in time
            if not left:
                raise
    driver.set_page_load_timeout(_TIMEOUT_S)
    driver.set_script_timeout(_TIMEOUT_S)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def browse(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Write the page of a recording, open it, and wait until all of it is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    def opened(recording: Recording, *, width: int = 1280, dark: bool = False) -> Any:
        page = tmp_path_factory.mktemp("page") / "report.html"
        write_page(page, recording)
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        chromium.get_log("browser")  # what the page before said
        chromium.get(page.as_uri())
        WebDriverWait(chromium, _TIMEOUT_S).until(lambda driver: driver.execute_script(_READY))
        return chromium

    return opened
