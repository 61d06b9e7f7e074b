from functools import cache

import numpy as np
import pytest
import torch

from examples.models import MODELS, build_model, export_model
from placeit.backends import load
from placeit.core.errors import FileError, ModelError
from placeit.devices.openvino import openvino_core

# as published; Inception-V3 without its auxiliary head
PARAMETERS = {"resnet50": 25_557_032, "inception_v3": 23_834_568, "bert_base": 109_482_240}
NAMES = [pytest.param(name, marks=() if name == "resnet50" else pytest.mark.nightly) for name in PARAMETERS]

built = cache(build_model)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_as_many_weights_as_published(name):
    assert sum(weight.numel() for weight in built(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_model_computes_what_the_torch_model_computes_and_activations_keep_their_scale(name, loaded_model):
    model = loaded_model(name)
    inputs = [model.random_inputs(seed) for seed in (0, 1)]
    reference = built(name)
    with torch.inference_mode():
        results = [reference(*map(torch.from_numpy, values.values())) for values in inputs]
    expected, other = (result if isinstance(result, tuple) else (result,) for result in results)
    compiled = openvino_core().compile_model(model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled(inputs[0])
    assert [spec.name for spec in model.outputs] == list(MODELS[name].outputs)
    for port, mine, different in zip(compiled.outputs, expected, other, strict=True):
        assert 0.1 < mine.std() < 10
        assert (mine - different).std() > 0.05, "the output hardly depends on the input"
        np.testing.assert_allclose(found[port], mine.numpy(), rtol=1e-3, atol=1e-4)


def test_weights_depend_on_the_seed_only_and_the_callers_random_state_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = build_model("resnet50").state_dict()
    assert torch.equal(torch.rand(3), expected)
    first, other = built("resnet50").state_dict(), build_model("resnet50", seed=2).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first if "weight" in key)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def test_no_normalisation_or_bias_is_left_at_its_initial_value():
    for name, weight in built("resnet50").state_dict().items():
        if name.endswith(("bias", "running_mean")):
            assert weight.abs().min() > 0, name
        if name.endswith(("norm.weight", "running_var")):
            assert (weight - 1).abs().max() > 0.01, name


@pytest.mark.slow
def test_a_dynamic_export_leaves_the_batch_open(tmp_path):
    path = export_model("resnet50", tmp_path / "resnet50.onnx", dynamic=True)
    with pytest.raises(ModelError, match=r"--input-shape image:1,3,224,224` \(or --batch 1\)"):
        load(path)
    assert load(path, batch=3).inputs[0].shape == (3, 3, 224, 224)


def test_an_unknown_model_is_refused_with_a_list_of_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match="no built-in model 'vgg'; there are resnet50, inception_v3, bert_base"):
        export_model("vgg", tmp_path / "vgg.onnx")


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(FileError, match="Cannot write"):
        export_model("resnet50", tmp_path / "missing" / "resnet50.onnx")
    assert list(tmp_path.iterdir()) == []
