from pathlib import Path

from nanobind.stubgen import StubGen

import placeit
from placeit import _core


def test_the_stubs_of_the_extension_say_what_it_holds():
    stubs = StubGen(_core, quiet=True)
    stubs.put(_core)
    committed = (Path(placeit.__file__).parent / "_core.pyi").read_text(encoding="utf-8")
    assert committed == stubs.get(), "placeit/_core.pyi is out of date: run `make stubs`"
