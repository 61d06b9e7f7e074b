"""The run that the README shows: its output, and two sections of its page as pictures, all of one run.

Needs the extras learn (for the model) and report, selenium, a Chromium with its driver, and a machine that does nothing else;
takes two minutes. `make readme-run` writes build/report.txt, docs/images/report-timeline.png and report-graph.png.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from examples.models import export_model
from tests.browser import open_browser, open_page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CLUSTER = """devices:
  left: {runs_on: CPU@0}
  right: {runs_on: CPU@1}
links: [{between: [left, right], bandwidth: 10 Gbit/s, latency: 50 us}]
"""
SECTIONS = {"timeline": "report-timeline.png", "graph": "report-graph.png"}


def main() -> None:
    """Search for a placement of Inception-V3, and write what was printed and two pictures of the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_model("inception_v3", folder / "inception_v3.onnx")
        (folder / "boards.yaml").write_text(CLUSTER, encoding="utf-8")
        options = ["inception_v3.onnx", "--devices", "boards.yaml", "--page", "report.html", *sys.argv[1:]]
        os.environ["PLACEIT_CACHE"] = str(folder / "costs")  # nothing that was measured at another time
        command = [sys.executable, "-m", "placeit", "optimize", *options]
        said = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
        print(said)
        (ROOT / "build" / "report.txt").write_text(said, encoding="utf-8")
        photograph(folder / "report.html")


def photograph(page: Path) -> None:
    """Write a picture of each of the sections of a page."""
    browser = open_browser()
    try:
        open_page(browser, page, width=1100)
        for section, picture in SECTIONS.items():
            area = browser.find_element("css selector", f"#{section} .picture").rect
            shot = {"clip": {**area, "scale": 1}, "captureBeyondViewport": True}
            data = browser.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
            (IMAGES / picture).write_bytes(base64.b64decode(data))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
