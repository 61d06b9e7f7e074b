"""Files that would run code when they are loaded are refused before PyTorch sees them; files of real programs are accepted."""

import contextlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import tqdm

from placeit.backends.torch.archive import screen
from placeit.backends.torch.model import load
from placeit.core.errors import ModelError

Json = dict[str, Any]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"y": torch.relu(self.linear(x["a"])) + self.shift * x["a"].shape[0]}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.pt2"
    sizes = {"x": {"a": {0: 2 * torch.export.Dim("half", min=1, max=8)}}}
    torch.export.save(torch.export.export(Model(), ({"a": torch.ones(4, 4)},), dynamic_shapes=sizes), path)
    return path


def changed(program: Path, path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write a copy in which a member is another one."""
    with zipfile.ZipFile(program) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def edit(name: str, change: Callable[[Json], None]) -> Callable[[dict[str, bytes]], None]:
    def change_members(members: dict[str, bytes]) -> None:
        member = f"{next(iter(members)).partition('/')[0]}/{name}"
        data = json.loads(members[member])
        change(data)
        members[member] = json.dumps(data).encode()

    return change_members


def graph(change: Callable[[Json], None]) -> Callable[[dict[str, bytes]], None]:
    return edit("models/model.json", lambda model: change(model["graph_module"]["graph"]))


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def opaque(harm: Path) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        folder = next(iter(members)).partition("/")[0]
        members[f"{folder}/data/constants/opaque_obj_0"] = pickle.dumps(Harm(harm))
        config = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        edit("data/constants/model_constants_config.json", lambda data: data["config"].update(c=config))(members)

    return change


def size(harm: Path) -> Callable[[dict[str, bytes]], None]:
    def change(data: Json) -> None:
        x = next(value for value in data["tensor_values"].values() if "as_expr" in value["sizes"][0])
        x["sizes"][0]["as_expr"]["expr_str"] = f"__import__('pathlib').Path('{harm}').touch() or 4"

    return graph(change)


def guard(harm: Path) -> Callable[[dict[str, bytes]], None]:
    return edit(
        "models/model.json", lambda data: data.update(guards_code=[f"__import__('pathlib').Path('{harm}').touch() is None"])
    )


def hidden_size(harm: Path) -> Callable[[dict[str, bytes]], None]:
    """A tensor called as a field that holds free text is called elsewhere."""

    def change(members: dict[str, bytes]) -> None:
        size(harm)(members)
        name = next(name for name in members if name.endswith("models/model.json"))
        values = json.loads(members[name])["graph_module"]["graph"]["tensor_values"]
        x = next(key for key, value in values.items() if "__import__" in str(value["sizes"][0]))
        members[name] = members[name].replace(f'"{x}"'.encode(), b'"metadata"')

    return change


def pickled_weight(harm: Path) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        folder = next(iter(members)).partition("/")[0]
        config = json.loads(members[f"{folder}/data/weights/model_weights_config.json"])
        weight = config["config"]["linear.weight"]
        weight["use_pickle"] = True
        written = io.BytesIO()
        torch.save(Harm(harm), written)
        members[f"{folder}/data/weights/model_weights_config.json"] = json.dumps(config).encode()
        members[f"{folder}/data/weights/{weight['path_name']}"] = written.getvalue()

    return change


def enumeration(harm: Path) -> Callable[[dict[str, bytes]], None]:
    harm.with_name("harmful_module.py").write_text(f"import pathlib; pathlib.Path({str(harm)!r}).touch()")
    key = json.dumps([{"__enum__": True, "fqn": "harmful_module:Kind", "name": "a"}])
    return edit("models/model.json", spec("builtins.dict", key))


@pytest.mark.parametrize("make", [opaque, size, guard, hidden_size, enumeration, pickled_weight])
def test_a_file_that_runs_code_is_refused_and_runs_it_only_if_it_is_trusted(
    make: Any, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    harm = tmp_path / "harm"
    path = changed(program, tmp_path / "model.pt2", make(harm))
    with pytest.raises(ModelError, match=r"could run code.*--trust"):
        load(path)
    assert not harm.exists()
    with contextlib.suppress(ModelError):  # having done its harm, it need not make a model
        load(path, trust=True)
    assert harm.exists()


def spec(kind: str, context: str) -> Callable[[Json], None]:
    text = json.dumps([1, {"type": kind, "context": context, "children_spec": []}])
    return lambda data: data["graph_module"]["module_call_graph"][0]["signature"].update(out_spec=text)


def first(**fields: Any) -> Callable[[Json], None]:
    return lambda data: data["nodes"][0].update(fields)


def member(name: str) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({f"{next(iter(members)).partition('/')[0]}/{name}": b"x"})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (graph(first(target="torch.hub.load")), "torch.hub.load"),
        (graph(first(target="torch.ops.load_library")), "load_library"),
        (graph(first(target="torch.ops.aten.add.__class__")), "__class__"),
        (graph(first(target="torch.ops.mine.op.default")), "mine.op"),
        (graph(first(target="_operator.attrgetter")), "attrgetter"),
        (graph(first(target="os.system")), "os.system"),
        (graph(first(target="torch.ops.aten.save.default")), "aten.save"),
        (graph(first(target="torch.ops.aten.from_file.default")), "aten.from_file"),
        (graph(first(target="torch.ops.prim.Print.default")), "prim.Print"),
        (graph(first(target="torch.ops.higher_order.aoti_call_delegate")), "aoti_call_delegate"),
        (graph(first(name="x): pass\nimport os #")), "characters"),
        (graph(lambda data: data["inputs"][0]["as_tensor"].update(name="x=exit()")), "characters"),
        (
            edit("models/model.json", spec("collections.defaultdict", '{"default_factory_module": "this"}')),
            "default_factory.*more than names",
        ),
        (edit("models/model.json", spec("os; exit()", "null")), "no name of a type"),
        (edit("models/model.json", spec("builtins.dict", '["a\\"]; exit() #"]')), "more than names"),
        (
            edit("data/weights/model_weights_config.json", lambda d: next(iter(d["config"].values())).update(path_name="../x")),
            "x",
        ),
        (
            edit("data/weights/model_weights_config.json", lambda d: d["config"].update({'a")': d["config"]["linear.bias"]})),
            "char",
        ),
        (member("data/aotinductor/model/model.so"), "aotinductor"),
        (member("data/constants/custom_obj_0"), "custom_obj"),
        (member("../../outside"), "not an archive|outside"),
        (lambda members: members.update({"version": b"8.20"}), "not an archive"),
    ],
)
def test_what_a_program_of_tensors_does_not_need_is_refused(change: Any, why: str, program: Path, tmp_path: Path) -> None:
    path = changed(program, tmp_path / "model.pt2", change)
    with pytest.raises(ModelError, match=rf"(?s){why}.*--trust"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "Symbol('s0').free_symbols",
        "[x for x in (1,)]",
        "exec('1')",
        "Symbol('__import__')",
        "9**9**9",
        "Float('exit()')",
        "Float('9e99999')",
        "math.trunc(s0)",
        "1 << 10000",
        "lambdify(s0, 1)",
        "f'{s0}'",
        "s0 # + 1",
        "Symbol('a\\\nx28')",  # SymPy drops the end of a line, and leaves the backslash
        "(" * 5000,
    ],
)
def test_sizes_are_arithmetic_and_nothing_else(text: str, program: Path, tmp_path: Path) -> None:
    def change(data: Json) -> None:
        x = next(value for value in data["tensor_values"].values() if "as_expr" in value["sizes"][0])
        x["sizes"][0]["as_expr"]["expr_str"] = text

    with pytest.raises(ModelError, match="the expression"):
        load(changed(program, tmp_path / "model.pt2", graph(change)))


def test_a_member_that_is_there_twice_is_refused(program: Path, tmp_path: Path) -> None:
    path = changed(program, tmp_path / "model.pt2", lambda members: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(next(name for name in archive.namelist() if name.endswith("model.json")), b"{}")
    with pytest.raises(ModelError, match=r"several ways|damaged"):
        load(path)


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # type: ignore[no-any-return]


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 4)

    def forward(self, x: dict[str, torch.Tensor], *, mask: torch.Tensor) -> list[Any]:
        y = self.linear(self.embedding(x["ids"]))
        return [torch.nn.functional.gelu(y, approximate="tanh") * mask, (y, y + 1), (x["ids"] & 1) | (x["ids"] << 2)]


class Guarded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 5 else x[: x.shape[0] // 3 + 1]


class Resized(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        smaller = torch.nn.functional.interpolate(x, scale_factor=0.5, mode="bilinear")
        return torch.nn.functional.interpolate(smaller, scale_factor=2.0, mode="bilinear") + y


AUTO = torch.export.Dim.AUTO
EVEN = 2 * torch.export.Dim("half", min=4, max=32)
ENCODER = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("module", "args", "kwargs", "sizes"),
    [
        (Nested(), ({"ids": torch.zeros(3, 2, dtype=torch.long)},), {"mask": torch.ones(3, 2, 4)}, None),
        (Guarded(), (torch.ones(8, 3),), {}, {"x": {0: AUTO}}),
        (Resized(), (torch.ones(1, 3, 32, 32),) * 2, {}, {"x": {2: EVEN, 3: EVEN}, "y": {2: EVEN, 3: EVEN}}),
        pytest.param(ENCODER.eval(), (torch.ones(2, 5, 16),), {}, {"src": {0: AUTO, 1: AUTO}}, marks=pytest.mark.slow),
    ],
)
def test_what_export_writes_is_read(
    module: torch.nn.Module, args: Any, kwargs: Any, sizes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # PyTorch's progress bar would leave a thread behind
    program = torch.export.export(module, args, kwargs, dynamic_shapes=sizes)
    for written in (program, program.run_decompositions()):
        torch.export.save(written, tmp_path / "model.pt2")
        screen(tmp_path / "model.pt2")  # raises nothing
        assert load(tmp_path / "model.pt2").graph.names


def test_what_pytorch_says_of_a_damaged_file_ends_as_a_sentence(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(program.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"PyTorch says: .*[^.]\.$"):
        load(path)


def test_weights_that_are_said_to_be_none_are_damage(program: Path, tmp_path: Path) -> None:
    def change(config: Json) -> None:
        config["config"]["linear.weight"]["is_param"] = False

    with pytest.raises(ModelError, match=r"damaged.*linear\.weight"):
        load(changed(program, tmp_path / "model.pt2", edit("data/weights/model_weights_config.json", change)))


def test_an_operator_that_nothing_here_defines_is_named(program: Path, tmp_path: Path) -> None:
    def change(model: Json) -> None:
        for node in model["nodes"]:
            if "relu" in node["target"]:
                node["target"] = "torch.ops.mylib.double.default"

    path = changed(program, tmp_path / "foreign.pt2", graph(change))
    called = r"calls 'torch\.ops\.mylib\.double\.default', "
    with pytest.raises(ModelError, match=called + "which is not one of PyTorch's own operators"):
        load(path)
    with pytest.raises(ModelError, match=called + "an operator that neither PyTorch nor any package loaded here defines"):
        load(path, trust=True)
