"""PyTorch modules and programs as task graphs, and back as modules."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import placeit.backends
from placeit.backends.convert import convert
from placeit.backends.torch.model import TorchModel, load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, FileError, ModelError, UsageError
from placeit.planning.coarsen import coarsen
from placeit.runtime.drivers import drive
from tests.torch_models import Calling, ConvNet, Transformer

X = torch.arange(6.0).reshape(2, 3)


@functools.cache
def conv_net() -> tuple[ConvNet, TorchModel]:
    torch.manual_seed(0)
    module = ConvNet()
    return module, load(module, (torch.randn(1, 3, 8, 8),))


@functools.cache
def transformer() -> tuple[Transformer, TorchModel]:
    torch.manual_seed(1)
    module = Transformer()
    return module, load(module, (torch.randint(20, (2, 6)), 0.5))


def of_kind(model: TorchModel, kind: str) -> list[str]:
    return [name for name, have in zip(model.graph.names, model.graph.kinds, strict=True) if have == kind]


def calling(function: Callable[..., Any], *others: Any, **buffers: torch.Tensor) -> TorchModel:
    return load(Calling(function, **buffers), (X, *others), name="small")


def test_ops_are_named_after_the_modules_that_call_them() -> None:
    graph = conv_net()[1].graph
    assert {"stem/conv2d", "head/linear"} <= set(graph.names)
    assert graph.kinds[graph.index["stem/conv2d"]] == "conv2d"


def test_inputs_and_outputs_are_parameters_and_results() -> None:
    model = conv_net()[1]
    assert [(spec.name, spec.op, spec.shape, spec.dtype) for spec in model.inputs] == [
        ("image", "image", (1, 3, 8, 8), "float32")
    ]
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("scores", (1, 5)), ("features", (1, 24, 8, 8))]
    assert of_kind(model, "Parameter") == ["image"]
    assert of_kind(model, "Result") == [spec.op for spec in model.outputs]


def test_outputs_are_named_by_their_place_in_what_the_module_returns() -> None:
    assert [spec.name for spec in transformer()[1].outputs] == ["output.0", "output.1.0", "output.1.1"]
    assert [spec.name for spec in calling(lambda _, x: x + 1).outputs] == ["output"]
    dotted = calling(lambda _, x: {"a.b": x + 1, "a": {"b": x + 2}, "none": None, "five": 5})
    assert [spec.name for spec in dotted.outputs] == ["a.b", "a.b_"]


class Answer(dict[str, torch.Tensor]):
    """A result as transformers and diffusers have them: a registered type with names, and no keyed flattening."""


class Pair:
    """A registered type without names."""

    def __init__(self, *values: torch.Tensor) -> None:
        self.values = values


class Answering(nn.Module):
    """Results in registered types, one in the other."""

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(hidden=x + 1, pair=Pair(x, x * 2))  # type: ignore[arg-type]


@contextlib.contextmanager
def registered() -> Iterator[None]:
    pytree.register_pytree_node(
        Answer,
        lambda answer: ([*answer.values()], [*answer]),
        lambda values, names: Answer(zip(names, values, strict=False)),
        serialized_type_name="tests.Answer",
    )
    pytree.register_pytree_node(
        Pair, lambda pair: ([*pair.values], None), lambda values, _: Pair(*values), serialized_type_name="tests.Pair"
    )
    try:
        yield
    finally:
        for kind in (Answer, Pair):
            pytree._deregister_pytree_node(kind)


def test_results_of_registered_types_are_named_by_their_keys_and_places(tmp_path: Path) -> None:
    path, names = tmp_path / "answer.pt2", ["hidden", "pair.0", "pair.1"]
    with registered():
        model = load(Answering(), (X,))
        assert [spec.name for spec in model.outputs] == names
        made = model.reference(None, "f32")({"x": X.numpy()})
        assert [made[name].tolist() for name in names] == [one.tolist() for one in (X + 1, X, X * 2)]
        torch.export.save(model.program, path)
        assert [spec.name for spec in load(path).outputs] == names
        assert torch.export.load(path).call_spec.out_spec.type is Answer  # as before
    assert [spec.name for spec in load(path).outputs] == names  # where nothing knows the types
    assert [spec.name for spec in load(path, trust=True).outputs] == names


def test_flops_and_weights_are_those_of_the_layers() -> None:
    graph = conv_net()[1].graph
    stem, head = graph.index["stem/conv2d"], graph.index["head/linear"]
    assert graph.flops[stem] == 2 * 8 * 8 * 8 * 3 * 9
    assert graph.param_bytes[stem] == 4 * (8 * 3 * 9 + 8)
    assert graph.flops[head] == 2 * 5 * 24
    assert graph.param_bytes[head] == 4 * (5 * 24 + 5)
    (right,) = (graph.index[name] for name in graph.names if name.startswith("right/"))
    assert graph.flops[right] == 2 * 8 * 8 * 8 * 4 * 9  # in two groups


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda _, x: x.t() @ x, 2 * 3 * 3 * 2),
        (lambda _, x: torch.bmm(x[None], x.t()[None]), 2 * 2 * 2 * 3),
        (lambda _, x: x.reshape(3, 2).flip(0), 0),
        (lambda _, x: x.exp(), 6),
        (lambda _, x: x.softmax(-1), 30),
        (lambda _, x: x.sum(0), 6),
        (lambda _, x: nn.functional.max_pool1d(x[None], 3, 1, 1), 18),
        (lambda _, x: nn.functional.conv_transpose1d(x[None], torch.ones(2, 4, 3)), 2 * 6 * 4 * 3),
        (lambda _, x: nn.functional.scaled_dot_product_attention(x, x, x), 2 * 4 * 3 + 7 * 4 + 2 * 6 * 2),
    ],
)
def test_flops_of_an_op(function: Callable[..., Any], flops: float) -> None:
    assert calling(function).graph.flops.sum() == flops


def test_a_recurrent_layer_applies_all_its_weights_at_every_step() -> None:
    model = load(nn.LSTM(4, 8, num_layers=2), (torch.randn(5, 2, 4),))
    weights = 4 * 8 * (4 + 8 + 8 + 8) + 4 * 4 * 8
    assert model.graph.flops[model.graph.kinds.index("lstm")] == 2 * 10 * weights


def test_several_outputs_of_an_op_are_several_tensors_of_it() -> None:
    model = transformer()[1]
    graph = model.graph
    (topk,) = of_kind(model, "topk")
    tensors = np.flatnonzero(graph.tensor_op == graph.index[topk])
    assert graph.tensor_port[tensors].tolist() == [0, 1]
    assert [graph.tensor_dtypes[t] for t in tensors] == ["float32", "int64"]
    assert not any("getitem" in name for name in graph.names)


def test_what_depends_on_no_input_is_computed_once_and_belongs_to_its_reader() -> None:
    model = transformer()[1]
    assert not {"arange", "full", "triu", "t"} & set(model.graph.kinds)
    masked = model.graph.index[of_kind(model, "scaled_dot_product_attention")[0]]
    assert model.graph.param_bytes[masked] > 0


def test_random_ops_are_not_computed_once() -> None:
    assert "rand" in calling(lambda _, x: x + torch.rand(3)).graph.kinds


def test_dropout_and_in_place_ops_leave_no_trace() -> None:
    kinds = conv_net()[1].graph.kinds
    assert not {"clone", "dropout", "relu_", "sigmoid_"} & set(kinds)


def test_the_mode_of_the_module_is_left_alone() -> None:
    module = ConvNet()
    module.norm.eval()
    load(module, (torch.randn(1, 3, 8, 8),))
    assert [part.training for part in (module, module.stem, module.norm, module.drop)] == [True, True, False, True]


@pytest.mark.parametrize("net", [conv_net, transformer])
def test_the_program_uncut_is_the_module_in_evaluation_mode(net: Callable[[], tuple[nn.Module, TorchModel]]) -> None:
    module, model = net()
    inputs = model.random_inputs(seed=3)
    module.eval()
    with torch.no_grad():
        expected = module(*(torch.from_numpy(value) for value in inputs.values()), *([0.5] if net is transformer else []))
    module.train()
    leaves = torch.utils._pytree.tree_leaves(expected)
    ours = model.reference(None, "f32")(inputs)
    whole = model.segment("torch", range(len(model.graph)), [], [])(*(torch.from_numpy(value) for value in inputs.values()))
    for spec, leaf, cut in zip(model.outputs, leaves, whole, strict=True):
        torch.testing.assert_close(torch.from_numpy(ours[spec.name]), leaf)
        torch.testing.assert_close(cut, leaf)


@pytest.mark.parametrize("net", [conv_net, transformer])
def test_a_model_cut_into_groups_computes_the_same(net: Callable[[], tuple[nn.Module, TorchModel]]) -> None:
    model = net()[1]
    graph, grouping = model.graph, coarsen(model.graph)
    inputs = model.random_inputs(seed=1)
    values: dict[int, torch.Tensor] = {}
    made: dict[str, torch.Tensor] = {}
    by_op = {spec.op: spec.name for spec in (*model.inputs, *model.outputs)}
    for group in range(len(grouping.groups)):
        ops = np.flatnonzero(grouping.group_of == group).tolist()
        edges = list(zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True))
        entering = sorted({t for (u, v), t in edges if v in ops and u not in ops})
        leaving = sorted({t for (u, v), t in edges if u in ops and v not in ops})
        ends = [by_op[graph.names[v]] for v in ops if graph.kinds[v] == "Result"]
        own = [torch.from_numpy(inputs[by_op[graph.names[v]]]) for v in ops if graph.kinds[v] == "Parameter"]
        outputs = model.segment("torch", ops, entering, leaving)(*(values[t] for t in entering), *own)
        values |= zip(leaving, outputs, strict=False)
        made |= zip(ends, outputs[len(leaving) :], strict=True)
    expected = model.reference(None, "f32")(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(made[name].numpy(), value, rtol=1e-5, atol=1e-5)


def test_weights_of_segments_are_buffers_that_share_the_models_memory() -> None:
    module, model = conv_net()
    segment = model.segment("torch", range(len(model.graph)), [], [])
    assert not list(segment.parameters())
    addresses = {buffer.data_ptr() for buffer in segment.buffers()}
    assert module.stem.weight.data_ptr() in addresses
    segment.to(torch.float64)  # what moving a segment elsewhere does
    assert module.stem.weight.dtype is torch.float32


def test_the_same_program_has_the_same_ops_however_it_comes(tmp_path: Path) -> None:
    model = transformer()[1]
    path = tmp_path / "saved.pt2"
    torch.export.save(model.program, path)
    again = placeit.backends.load(path)
    assert again.name == "saved"
    assert again.graph.hash == model.graph.hash == load(model.program).graph.hash
    inputs = model.random_inputs()
    assert {name: value.tolist() for name, value in again.random_inputs().items()} == {
        name: value.tolist() for name, value in inputs.items()
    }
    np.testing.assert_array_equal(
        again.reference(None, "f32")(inputs)["output.0"], model.reference(None, "f32")(inputs)["output.0"]
    )


def test_open_sizes_are_fixed_by_the_example_inputs(caplog: pytest.LogCaptureFixture) -> None:
    batch = torch.export.Dim("batch", min=2, max=10)
    program = torch.export.export(nn.Linear(3, 4), (X,), dynamic_shapes=({0: batch},))
    assert load(program).inputs[0].shape == (2, 3)
    assert "program has open sizes, and is placed for the sizes of its example inputs only: give ranges" in caplog.text
    assert load(program, torch.ones(5, 3)).inputs[0].shape == (5, 3)


def test_keyword_arguments_and_constants_are_known_by_their_names() -> None:
    module = Transformer()
    model = load(module, {"ids": torch.zeros(1, 4, dtype=torch.long), "scale": 2.0})
    assert [spec.name for spec in model.inputs] == ["ids"]
    assert model.random_inputs()["ids"].tolist() == [[0, 0, 0, 0]]
    assert model.reference(None, "f32")(model.random_inputs())["output.0"].shape == (1, 4, 20)


def test_no_grad_inside_a_program_is_no_obstacle() -> None:
    def doubled(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return y + 1

    program = torch.export.export(Calling(doubled), (X,))
    assert load(program).graph.kinds == ("Parameter", "mul", "add", "Result")


def count_and_keep(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    module.seen += 1
    module.cache[0] = x[0]
    return module.cache.sum(0) * module.seen


def test_a_module_in_bfloat16_computes_in_it_and_has_float32_at_its_border() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).bfloat16(), torch.randn(2, 8).bfloat16()
    model = load(module, x)
    assert [(spec.dtype, spec.shape) for spec in (*model.inputs, *model.outputs)] == [("float32", (2, 8))] * 2
    assert "bfloat16" in model.graph.tensor_dtypes
    inputs = {"input": x.float().numpy()}
    whole = model.segment("torch", range(len(model.graph)), [], [])
    with torch.no_grad():
        expected = module(x)
        (made,) = whole(x.float())
        result = model.called(model.reference(None, "f32"))(x)
    assert result.dtype is torch.bfloat16
    for value in (made.bfloat16(), result, torch.from_numpy(model.reference(None, "f32")(inputs)["output"]).bfloat16()):
        torch.testing.assert_close(value, expected)


def test_state_is_kept_together_and_every_run_starts_from_the_initial_one() -> None:
    module = Calling(count_and_keep, seen=torch.zeros(()), cache=torch.ones(2, 3))
    model = load(module, (X,))
    grouping = coarsen(model.graph, keep_together=model.together)
    kinds = [{model.graph.kinds[model.graph.index[name]] for name in sharers} for sharers in model.together]
    assert kinds == [{"add", "copy"}, {"select", "select_scatter", "copy"}]
    for sharers in model.together:
        assert len({int(grouping.group_of[model.graph.index[name]]) for name in sharers}) == 1
    assert [(spec.name, spec.shape, spec.dtype) for spec in model.states] == [
        ("seen", (), "float32"),
        ("cache", (2, 3), "float32"),
    ]
    run, inputs = model.reference(None, "f32"), {"x": X.numpy()}
    for _ in range(2):
        np.testing.assert_array_equal(run(inputs)["output"], X[0].numpy() + 1)
    assert module.seen == 0
    assert (module.cache == 1).all()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda _, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), r"op 'cond' .*torch\.where"),
        (lambda _, x: x * x.sum().item(), r"op 'item' \(aten\.item\.default\), called at .*, makes a .* number .*\.item\(\)"),
        (lambda _, x: x if x.sum() > 0 else x + 1, r"control flow depends on data \(.*\.py, line \d+\)"),
        (lambda _, x: x.nonzero(), r"op 'nonzero' \(aten\.nonzero\.default\), called at .*, makes a tensor of shape \[u0, 2\]"),
        (lambda _, x: x[x > 0].sum(), r"op 'index' \(aten\.index\.Tensor\).*size depends on the data.*mask"),
        (lambda _, x: x.add_(1), r"changes its input 'x' in place.*x\.clone\(\)"),
        (lambda _, x: x.as_strided((2, 2), (1, 1)), r"op 'as_strided' .*reads memory by strides.*slices"),
        (lambda _, x: x.to_sparse(), r"op '\w*sparse\w*'"),
        (
            lambda _, x: x.to(torch.complex64),
            r"output 'output' has type complex64, which is not a type of NumPy's.*convert it inside",
        ),
        (lambda _, x: torch.complex(x, x), r"output 'output' has type complex64.*torch\.view_as_real"),
        (lambda _, x: torch.while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,)), r"op 'while_loop' .*number of steps"),
        (lambda _, x: None, r"small returns no tensor"),
        (lambda _, x: x.to("meta"), r"what op '\w+' \(aten\S+\) makes is on meta.*module\.cpu\(\)"),
        (
            lambda _, x: Path("/none/such").read_text(),
            r"Cannot export small \(.*, line \d+\): .*/none/such",
        ),
        (lambda _, x: x @ x, r"Cannot export small \(.*test_torch_backend\.py, line \d+\)"),
        (lambda _, x: x.no_such_thing(), r"Cannot export small .*no_such_thing"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_the_op_and_what_to_do(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        calling(function)


def test_a_failed_export_prints_no_more_than_the_module_does(capfd: pytest.CaptureFixture[str]) -> None:
    def told(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        sys.stderr.write("told\n")
        return x if x.sum() > 0 else x + 1

    for function in (told, lambda _, x: x.view(7), lambda _, x: x @ x):
        with pytest.raises(ModelError):
            load(Calling(function), (X,))
    assert set(capfd.readouterr().err.splitlines()) == {"told"}


def test_a_module_without_example_inputs_is_refused() -> None:
    with pytest.raises(ModelError, match="Linear: a module is exported by calling it: give the arguments of a call"):
        load(nn.Linear(2, 2))


def test_weights_elsewhere_than_in_memory_are_refused() -> None:
    with pytest.raises(ModelError, match=r"the weight 'weight' is on meta.*module\.cpu\(\)"):
        load(nn.Linear(3, 2, device="meta"), (X.to("meta"),))


def test_example_inputs_elsewhere_than_in_memory_are_refused() -> None:
    with pytest.raises(ModelError, match=r"the input 'input' is on meta.*module\.cpu\(\)"):
        load(nn.ReLU(), (X.to("meta"),))


@pytest.mark.parametrize(("x", "buffers"), [(X.to_sparse(), {}), (X, {"w": torch.eye(3).to_sparse()})])
def test_sparse_inputs_and_weights_are_refused(x: torch.Tensor, buffers: dict[str, torch.Tensor]) -> None:
    module = Calling(lambda m, x: torch.sparse.mm(m.w if buffers else x, torch.eye(3)), **buffers)
    with pytest.raises(ModelError, match=r"'[xw]' has the layout torch\.sparse_coo.*to_dense"):
        load(module, (x,), name="small")


def test_a_custom_op_that_changes_its_argument_is_named() -> None:
    @torch.library.custom_op("placeit_tests::bump", mutates_args=("x",))
    def bump(x: torch.Tensor) -> None:
        x.add_(1)

    def bumped(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        bump(y)
        return y

    with pytest.raises(ModelError, match=r"\(placeit_tests\.bump\.default\) changes a tensor in place"):
        calling(bumped)


@pytest.mark.filterwarnings("ignore:A model attribute `lifted_tensor_0` requires gradient")
def test_the_op_that_cannot_be_lowered_is_named() -> None:
    with pytest.raises(ModelError, match=r"\(op '\w+', torch\.ops\.higher_order\.\w+\)"):
        calling(lambda _, x: torch.func.grad(lambda y: (y * y).sum())(x))


def test_a_segment_computes_where_its_inputs_are() -> None:
    model = calling(lambda _, x: x.to("cpu", torch.float64) + torch.zeros_like(x, device="cpu"))
    segment = model.segment("torch", range(len(model.graph)), [], [])
    assert segment(X.to("meta"))[0].device.type == "meta"


def test_a_segment_takes_its_inputs_in_any_order_of_memory() -> None:
    model = calling(lambda _, x: x.t().exp().t().view(-1) + 1)
    graph = model.graph
    ops = [graph.index[name] for name in ("view", "add")]
    enter = [t for (_, v), t in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True) if v == ops[0]]
    segment = model.segment("torch", ops, enter, [int(np.flatnonzero(graph.tensor_op == ops[1])[0])])
    for value in (X, X.t().contiguous().t()):
        assert segment(value)[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_random_numbers_are_announced(caplog: pytest.LogCaptureFixture) -> None:
    calling(lambda _, x: x + torch.rand(3))
    assert "small draws random numbers (op 'rand', called at line " in caplog.text


def attention(_: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


def dropping_attention(_: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (Calling(attention), False),
        (Calling(dropping_attention), True),
        (nn.LSTM(3, 4, num_layers=2, dropout=0.5).eval(), False),
        (nn.GRU(3, 4).eval(), False),
        (nn.RNN(3, 4, num_layers=2).train(), False),
        (nn.GRU(3, 4, num_layers=2, dropout=0.5).train(), True),
        (nn.MultiheadAttention(4, 2, dropout=0.5).eval(), False),
        (nn.RReLU().eval(), False),
        (nn.RReLU().train(), True),
    ],
    ids=["attention", "attention, dropping", "lstm", "gru", "rnn", "gru, training", "multi-head", "rrelu", "rrelu, training"],
)
def test_ops_with_a_dropout_of_their_own_draw_numbers_only_if_it_is_on(
    module: nn.Module, draws: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "program.pt2"
    inputs = (torch.ones(2, 1, 4),) * 3 if isinstance(module, nn.MultiheadAttention) else (torch.ones(2, 1, 3),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, inputs), path)
    load(path)
    assert ("draws random numbers" in caplog.text) == draws


def test_what_fails_uncut_is_a_device_error() -> None:
    model = calling(lambda _, x: torch.complex(x, x).relu().abs())  # PyTorch has no such kernel
    with pytest.raises(DeviceError, match=r"PyTorch cannot run small uncut on the CPU: .*complex"):
        model.reference(None, "f32")({"x": X.numpy()})


def test_the_batch_cannot_be_changed_by_option() -> None:
    with pytest.raises(ModelError, match=r"^Linear: the batch of a PyTorch program is fixed by its example inputs"):
        load(nn.Linear(3, 2), (X,), batch=2)


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_that_holds_no_program_is_a_model_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.pt2"
    if content is None:
        torch.save(nn.Linear(2, 2).state_dict(), path)
    else:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.pt2: it is damaged, or no program that.*torch\.export\.save\("):
        load(path)


def rewritten(path: Path, old: bytes, new: bytes, where: str) -> Path:
    """Write a program whose files of some name are changed."""
    torch.export.save(torch.export.export(nn.Linear(3, 4), (X,)), path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, data.replace(old, new) if where in name else data)
    return path


def test_a_program_of_a_gpu_is_to_be_exported_on_the_cpu(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "gpu.pt2", b'"type": "cpu"', b'"type": "cuda"', "weights_config")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without an NVIDIA GPU")
    with pytest.raises(ModelError, match=r"gpu\.pt2: it was exported on a GPU.*module\.cpu\(\)"):
        load(path)


def test_a_damaged_program_is_a_model_error(tmp_path: Path) -> None:
    for where in ("weights_config", "model.json", "weight_0"):
        with pytest.raises(ModelError, match=r"bad\.pt2: it is damaged"):
            load(rewritten(tmp_path / "bad.pt2", b"", b"\xff", where))


def test_a_missing_file_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.pt2"):
        load(tmp_path / "none.pt2")


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


def test_nothing_in_a_file_is_unpickled_but_tensors(tmp_path: Path) -> None:
    path, harm = tmp_path / "harmful.pt2", tmp_path / "harm"
    torch.export.save(torch.export.export(nn.Linear(3, 4), (X,)), path)
    stream = io.BytesIO()
    torch.save((Harmful(harm),), stream, pickle_module=pickle)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (examples,) = (name for name in files if "sample_inputs" in name)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(name, stream.getvalue() if name == examples else data)
    with pytest.raises(ModelError):
        load(path)
    assert not harm.exists()


def test_cpu_core_sets_are_driven_by_pytorch_and_other_devices_by_openvino_at_one_size() -> None:
    model = conv_net()[1]
    core, described = Device("a", address=Address("CPU", (0,)), driver="OpenVINO"), Device("b", kind="described")
    driven = drive(Cluster((core, described)), model)
    assert [device.kind for device in driven.devices] == ["torch", "described"]
    assert driven.devices[0].driver == f"PyTorch {torch.__version__}"
    gpu = Cluster((Device("GPU.0", address=Address("GPU.0")),))
    assert [device.kind for device in drive(gpu, model).devices] == ["openvino"]
    half = load(torch.nn.Linear(2, 2).bfloat16(), (torch.zeros(1, 2, dtype=torch.bfloat16),))
    with pytest.raises(DeviceError, match=r"OpenVINO drives GPU\.0, and Linear is a PyTorch model.*placeit export"):
        drive(gpu, half)


def test_ops_without_a_kernel_are_not_supported() -> None:
    model = conv_net()[1]
    assert model.with_kernel("CPU") == set(model.graph.names)
    assert "stem/conv2d" in model.graph.names
    if not torch.backends.mps.is_built():  # in other builds composite ops have no kernel either
        assert {model.graph.kinds[model.graph.index[name]] for name in model.with_kernel("MPS")} == {"Parameter", "Result"}


@pytest.mark.parametrize(
    ("function", "lacks"),
    [
        (lambda _, x: torch.complex(x, x).relu().abs(), {"relu"}),
        (lambda _, x: torch.special.bessel_j0(x.bfloat16()).float() + torch.special.bessel_j0(x), {"special_bessel_j0"}),
        (lambda _, x: (x.bfloat16() @ x.bfloat16().t()).relu().float(), set()),
        (lambda _, x: torch.ones(3)[x.long().clamp(0, 2)] / x.gather(1, x.long()), set()),
    ],
)
def test_an_op_without_a_kernel_for_its_type_is_not_supported(function: Callable[..., Any], lacks: set[str]) -> None:
    model = calling(function)
    assert set(model.graph.names) - model.with_kernel("CPU") == lacks


@pytest.mark.parametrize("net", [conv_net, transformer])
@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_model_that_is_written_in_another_format_computes_the_same(
    tmp_path: Path, net: Callable[[], tuple[nn.Module, TorchModel]], suffix: str
) -> None:
    model = net()[1]
    path = tmp_path / f"model{suffix}"
    convert(model, path)
    written = placeit.backends.load(path)
    assert [(spec.name, spec.shape, spec.dtype) for spec in written.inputs] == [
        (spec.name, spec.shape, spec.dtype) for spec in model.inputs
    ]
    assert [(spec.name, spec.shape) for spec in written.outputs] == [(spec.name, spec.shape) for spec in model.outputs]
    inputs = model.random_inputs(seed=2)
    ours, theirs = model.reference(None, "f32")(inputs), written.reference(None, "f32")(inputs)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-4, atol=1e-4)


def write_into(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    value = x * 2
    value[:, 0] = 7.0
    value[0].mul_(3)
    value[:, ::2] = x[:, ::2]
    return value


def nothing_but_structure(_: nn.Module, x: torch.Tensor, pair: Any, unread: torch.Tensor, word: str) -> dict[str, Any]:
    return {"a": [x + pair[0], (pair[1]["k"],)], "b": 2, "": x.to(torch.int32) if word else unread}


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
@pytest.mark.parametrize(
    ("function", "others"), [(write_into, ()), (nothing_but_structure, ((X + 1, {"k": X + 2}), X + 3, "word"))]
)
def test_assignments_and_nested_arguments_survive_another_format(
    tmp_path: Path, function: Callable[..., Any], others: tuple[Any, ...], suffix: str
) -> None:
    model = calling(function, *others)
    convert(model, tmp_path / f"model{suffix}")
    written = placeit.backends.load(tmp_path / f"model{suffix}")
    inputs = model.random_inputs(seed=2)
    ours = model.reference(None, "f32")(inputs)
    theirs = written.reference(None, "f32")({spec.name: inputs[spec.name] for spec in written.inputs})
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-5)


def test_nothing_is_printed_when_another_format_lacks_an_op(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"fft_rfft.*not supported.*another way"):
        convert(calling(lambda _, x: torch.fft.rfft(x).abs()), tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")


def test_an_op_that_another_format_does_not_have_is_named(tmp_path: Path) -> None:
    model = calling(lambda _, x: torch.special.bessel_j0(x))
    for suffix in (".onnx", ".xml"):
        with pytest.raises(ModelError, match="bessel_j0"):
            convert(model, tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())


def test_a_format_that_nothing_writes_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.onnx.*\.xml"):
        convert(conv_net()[1], tmp_path / "model.pt2")
