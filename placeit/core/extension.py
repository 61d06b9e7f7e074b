"""Load the compiled extension ``placeit._core``, with a helpful error if it is missing or does not load."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from placeit.core.errors import ExtensionError, first_line

__all__ = ["load_extension"]


def load_extension() -> ModuleType:
    """Import ``placeit._core``. Raises ExtensionError, which says what to do, if that fails."""
    try:
        return import_module("placeit._core")
    except ImportError as error:
        package = Path(__file__).parents[1]
        others = sorted(path.name for path in package.glob("_core.*.so"))
        if not isinstance(error, ModuleNotFoundError) or error.name != "placeit._core":
            what = f"cannot be loaded ({first_line(error)})"
        else:
            what = f"is built for another Python or processor ({', '.join(others)})" if others else "is missing"
        if (package.parent / "CMakeLists.txt").is_file():
            remedy = f"run `make native` in {package.parent}, which builds it for the Python in .venv"
        else:
            remedy = "install placeit again, with the Python that is to use it"
        raise ExtensionError(f"placeit's compiled extension, {package / '_core'}, {what}: {remedy}.") from error
