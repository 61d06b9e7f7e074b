"""Graph sizes of the three models, against what the HSDAG paper counts in its way and what OpenVINO 2026.4 makes of them.

The paper counts every layer of a model with float16 weights: 396/411 for ResNet-50 and 728/764 for Inception-V3, of which
OpenVINO 2026.4 leaves 726/762. Its BERT-base has other exporter settings (1009/1071).
"""

import warnings

import openvino
import pytest
import torch

from examples.models import MODELS, build_model
from placeit.backends import load
from placeit.planning.coarsen import LARGEST, coarsen

LARGER = [
    pytest.param(*figures, marks=pytest.mark.slow)
    for figures in (("inception_v3", 325, 361, 66, 70), ("bert", 390, 448, 88, 88), ("bert_base", 393, 451, 90, 90))
]


@pytest.fixture(scope="session")
def two_input_bert(tmp_path_factory):
    """BERT-base as the reference figures were counted: all tokens of one type, so that ``token_type_ids`` is no input."""
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    ids, mask, _ = MODELS["bert_base"].inputs(1, 128).values()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            build_model("bert_base"), (ids, mask), str(path), input_names=["ids", "mask"], opset_version=17, dynamo=False
        )
    yield load(path)
    path.unlink()


@pytest.fixture
def model(request, loaded_model):
    return request.getfixturevalue("two_input_bert") if request.param == "bert" else loaded_model(request.param)


@pytest.mark.parametrize(
    ("model", "ops", "edges", "groups", "bounded"),
    [("resnet50", 178, 193, 37, 45), *LARGER],
    indirect=["model"],
)
def test_ops_edges_and_co_located_groups_match_the_reference_figures(model, ops, edges, groups, bounded):
    assert (len(model.graph), len(model.graph.edges)) == (ops, edges)
    assert len(coarsen(model.graph).groups) == groups
    assert len(coarsen(model.graph, largest=LARGEST).groups) == bounded, "what sessions work with: of the same order"


@pytest.mark.parametrize(
    ("model", "layers", "edges"),
    [
        ("resnet50", 396, 411),
        *(pytest.param(*figures, marks=pytest.mark.slow) for figures in (("inception_v3", 726, 762), ("bert", 951, 1009))),
    ],
    indirect=["model"],
)
def test_counting_every_layer_of_the_float16_model_matches_the_reference_figures(model, layers, edges, tmp_path):
    openvino.save_model(openvino.convert_model(str(model.path)), tmp_path / "half.xml", compress_to_fp16=True)
    half = load(tmp_path / "half.xml")
    statistics = half.statistics()
    assert (statistics["layers"], statistics["layer_edges"]) == (layers, edges)
    assert (len(half.graph), len(half.graph.edges)) == (len(model.graph), len(model.graph.edges))
    assert statistics["parameter_bytes"] == pytest.approx(model.statistics()["parameter_bytes"] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("resnet50", 8.2e9),
        *(pytest.param(*figures, marks=pytest.mark.slow) for figures in (("inception_v3", 11.4e9), ("bert_base", 22.4e9))),
    ],
)  # twice 4.1, 5.7 and 11.2 billion multiply-adds
def test_operations_of_one_inference_match_the_published_totals(loaded_model, name, flops):
    assert loaded_model(name).statistics()["flops"] == pytest.approx(flops, rel=0.01)
