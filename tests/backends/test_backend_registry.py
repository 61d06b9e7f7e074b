from importlib.metadata import EntryPoint

import pytest
import torch

from placeit.backends import load, suffixes
from placeit.core import registry
from placeit.core.errors import FileError, ModelError, UsageError


def plug_in(monkeypatch, *points):
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(*point, group) for point in points])


def read_toy(path, **options):
    return path, options


def test_the_suffix_of_a_file_decides_who_reads_it(ir_file):
    path = ir_file()
    assert load(path).path == path
    assert {".onnx", ".xml"} <= suffixes().keys()


def test_a_file_that_no_backend_reads_is_refused_with_a_list_of_suffixes():
    with pytest.raises(ModelError, match=r"model\.h5: no backend reads '\.h5' files; the known ones are \.onnx, \.pt2, \.xml"):
        load("model.h5")


def test_a_folder_without_a_model_is_refused_with_the_names_that_a_model_has_there(tmp_path):
    with pytest.raises(ModelError, match=r"is a folder without a model: give a file, or a folder with .*openvino_model\.xml"):
        load(tmp_path)


def test_a_model_that_does_not_exist_is_said_to_be_missing_whatever_else_is_asked():
    for options in ({}, {"context": 8}, {"state": "a=b"}):
        with pytest.raises(ModelError, match=r"ffnnn: there is no such file or folder; .*did you mean 'ffnn'"):
            load("ffnnn", **options)


@pytest.mark.parametrize("name", ["a" * 300 + ".onnx", "a" * 5000])
def test_a_path_that_the_system_refuses_is_an_error_that_names_it(name):
    with pytest.raises((FileError, ModelError), match=name):
        load(name)


def test_options_that_only_files_take_are_refused_for_a_module():
    module = torch.nn.Linear(3, 3)
    for options, says in (
        ({"state": {"a": "b"}}, "Linear: only of ONNX files"),
        ({"context": 8}, "Linear: only for decoders"),
        ({"batch": 0}, "Linear: the batch of a PyTorch program"),
    ):
        with pytest.raises((ModelError, UsageError), match=says):
            load(module, example=(torch.zeros(2, 3),), **options)


def test_files_of_weights_are_told_from_programs(tmp_path):
    with pytest.raises(ModelError, match=r"model\.pth: no backend reads .* Such files hold weights .*torch\.export\.save"):
        load(tmp_path / "model.pth")


def test_an_installed_plug_in_reads_its_files(monkeypatch):
    plug_in(monkeypatch, ("toy", f"{__name__}:read_toy"))
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("sys").modules[__name__])
    assert load("a.TOY", batch=2) == ("a.TOY", {"batch": 2})


def test_two_backends_for_one_suffix_are_an_error(monkeypatch):
    plug_in(monkeypatch, ("onnx", "toy:read"))
    with pytest.raises(UsageError, match=r"Two backends are named 'onnx': placeit\.backends\.onnx\.load:load and toy:read"):
        load("model.onnx")
