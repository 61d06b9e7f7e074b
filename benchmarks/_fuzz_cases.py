"""Cases of the fuzzer: a changed file of some kind, and the command that reads it.

A case can be made again from the seed of the run and its number. A case that went wrong is kept as an archive of its files.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._fuzz_mutations import (
    change_archive,
    change_array,
    change_bytes,
    change_json,
    change_model,
    change_safetensors,
    change_tree,
    change_yaml,
    harm_program,
    several,
)

__all__ = ["KINDS", "Case", "make_case", "pack", "unpack"]

Random = random.Random

_ABOUT = "case.json"


@dataclass(frozen=True)
class Case:
    """Files and a command.

    Attributes:
        kind: kind of the file that was changed.
        argv: the command, as after ``placeit``; it runs in the folder of the files.
        files: contents by path; None for a pipe without a writer.
        outputs: beginnings of the paths that the command may write, whether or not it succeeds.
        results: beginnings of the paths that it may write only if it succeeds.
        measures: whether it runs a model that the case has changed, whose tensors may rightly be large.
    """

    kind: str
    argv: tuple[str, ...]
    files: Mapping[str, bytes | None]
    outputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    measures: bool = False


def pack(case: Case, **about: Any) -> bytes:
    """Write a case as an archive, with a text about it."""
    stream = io.BytesIO()
    told = {name: getattr(case, name) for name in ("kind", "argv", "outputs", "results", "measures")}
    told["pipes"] = [path for path, content in case.files.items() if content is None]
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_ABOUT, json.dumps(told | about, indent=2))
        for path, content in case.files.items():
            if content is not None:
                archive.writestr(f"files/{path}", content)
    return stream.getvalue()


def unpack(content: bytes) -> Case:
    """Read an archive that :func:`pack` wrote."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        told = json.loads(archive.read(_ABOUT))
        files: dict[str, bytes | None] = {
            name.removeprefix("files/"): archive.read(name) for name in archive.namelist() if name != _ABOUT
        }
    files |= dict.fromkeys(told["pipes"])
    parts = {name: tuple(told[name]) for name in ("argv", "outputs", "results")}
    return Case(told["kind"], files=files, measures=told["measures"], **parts)


@dataclass(frozen=True)
class _Maker:
    """The material for the cases of one kind.

    Attributes:
        seeds: the folder of the files to change; see :mod:`benchmarks._fuzz_seeds`.
        rng: the random number generator.
        devices: two devices that models run on.
    """

    seeds: Path
    rng: Random
    devices: tuple[str, str]
    files: dict[str, bytes | None] = field(default_factory=dict)

    def read(self, folder: str, name: str = "", ending: str = "") -> tuple[str, bytes]:
        """Return the name and content of a file in a folder; of a random one if no name is given."""
        found = sorted(path for path in (self.seeds / folder).iterdir() if path.name.endswith(ending))
        path = self.seeds / folder / name if name else self.rng.choice(found)
        return path.name, path.read_bytes()

    def add(self, folder: str, name: str, path: str = "") -> str:
        """Add an unchanged file, and return its path."""
        self.files[path or name] = self.read(folder, name)[1]
        return path or name

    def add_all(self, folder: str, under: str) -> None:
        for path in sorted((self.seeds / folder).iterdir()):
            self.files[f"{under}/{path.name}"] = path.read_bytes()

    def case(self, kind: str, *argv: str, **more: Any) -> Case:
        argv = (*argv, *self.rng.choice(((), ("--json",))))
        return Case(kind, argv, self.files, **more)

    # kinds

    def onnx(self) -> Case:
        import onnx

        _, content = self.read("onnx", ending=".onnx")
        weights = self.seeds / "onnx" / "weights.bin"
        if b"weights.bin" in content:
            self.files[weights.name] = weights.read_bytes()
            if self.rng.random() < 0.2:
                self.files[weights.name] = several(weights.read_bytes(), change_bytes, self.rng)
        if self.rng.random() < 0.3:
            content = several(content, change_bytes, self.rng)
        else:
            content = several(onnx.ModelProto.FromString(content), change_model, self.rng).SerializeToString()
        self.files["model.onnx"] = content
        return self.model("onnx", "model.onnx")

    def ir(self) -> Case:
        name, content = self.read("ir", ending=".xml")
        weights = self.read("ir", name.replace(".xml", ".bin"))[1]
        if self.rng.random() < 0.15:
            weights = several(weights, change_bytes, self.rng)
        else:
            content = several(content, change_bytes, self.rng)
        self.files.update({"model.xml": content, "model.bin": weights})
        return self.model("ir", "model.xml")

    def pt2(self) -> Case:
        content = self.read("pt2")[1]
        self.files["model.pt2"] = change_archive(content, self.rng, (harm_program,))
        return self.model("pt2", "model.pt2")

    def model(self, kind: str, model: str) -> Case:
        """Read a changed model by one of several commands, mostly without running it."""
        first, second = self.devices
        way = self.rng.choices(("inspect", "export", "described", "compare", "ort"), (16, 2, 2, 1, 1))[0]
        if way == "export" and kind == "pt2":
            way = "inspect"  # writing ONNX takes long
        match way:
            case "inspect":
                more: tuple[str, ...] = self.rng.choice(((), ("--groups",), ("--max-groups", "2"), ("--batch", "2")))
                return self.case(kind, "inspect", model, *more)
            case "export":
                return self.case(kind, "export", model, "-o", "out.xml", results=("out.",))
            case "described":
                return self.simulate(kind, model, "--placer", "heft")
            case "ort" if kind == "onnx":
                return self.case(kind, "compare", model, "-d", f"ort:{first}", "--runs", "1", measures=True)
        return self.case(kind, "compare", model, "-d", f"{first},{second}", "--runs", "1", measures=True)

    def simulate(self, kind: str, model: str, *more: str) -> Case:
        cluster = self.add("cluster", "described.yaml")
        words = (model, "-d", cluster, "--budget", "0.5", "-o", "out.json", *more)
        return self.case(kind, "optimize", *words, results=("out.json",))

    def placement(self) -> Case:
        model = self.add("onnx", "tiny.onnx")
        self.files["p.json"] = change_json(self.read("placement")[1], self.rng)
        maps = [word for device in self.devices for word in ("--map", f"{device}=CPU")]
        match self.rng.choice(("export", "export", "run", "compare")):
            case "run":
                return self.case(
                    "placement", "run", model, "-p", "p.json", "--runs", "1", "--trace", "t.json", results=("t.json",)
                )
            case "compare":
                return self.case("placement", "compare", model, "-p", "p.json", "--runs", "1")
        return self.case("placement", "export", model, "-p", "p.json", "-o", "out.xml", *maps, results=("out.",))

    def cluster(self) -> Case:
        name, content = self.read("cluster")
        self.files["c.yaml"] = several(content, change_yaml, self.rng)
        if name != "described.yaml" or self.rng.random() < 0.6:
            return self.case("cluster", "devices", "--no-links", "-d", "c.yaml")
        words = (self.add("onnx", "tiny.onnx"), "-d", "c.yaml", "--budget", "0.5", "--placer", "heft", "-o", "out.json")
        more: tuple[str, ...] = self.rng.choice(((), ("--objective", "energy")))
        return self.case("cluster", "optimize", *words, *more, results=("out.json",))

    def checkpoint(self) -> Case:
        """Make a case of a policy's weights, changed as bytes, or as contents with the right digest."""
        self.files["w.safetensors"] = self.tensors("checkpoint", "placeit-agent")
        placer = self.rng.choice(("giph", "giph", "guided"))
        return self.simulate("checkpoint", self.add("onnx", "tiny.onnx"), "--placer", f"{placer}:weights=w.safetensors")

    def training(self) -> Case:
        """Make a case of a training's state, changed as bytes or with the right digest, or the problems that it learns from."""
        self.add_all("problems", "problems")
        self.add_all("run", "run")
        if self.rng.random() < 0.7:
            self.files["run/state.safetensors"] = self.tensors("run", "placeit-training", "state.safetensors")
        else:
            name, content = self.read("problems", ending=".json")
            self.files[f"problems/{name}"] = change_json(content, self.rng)
        return self.case("training", *TRAIN, "--resume", outputs=("run/",), results=("out.safetensors",))

    def tensors(self, folder: str, form: str, name: str = "") -> bytes:
        content = self.read(folder, name, ending=".safetensors")[1]
        if self.rng.random() < 0.4:
            return change_safetensors(content, self.rng)
        from safetensors import SafetensorError, safe_open

        from placeit.core.errors import PlaceitError
        from placeit.learning.checkpoint import write_safetensors

        path = self.seeds.parent / "made.safetensors"  # beside the seeds, where no case reads it
        path = path.with_stem(f"made{self.rng.getrandbits(64)}")
        try:
            path.write_bytes(content)
            with safe_open(path, framework="pt") as file:
                about = json.loads(file.metadata()["placeit"])["about"]
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if self.rng.random() < 0.35:
                _change_tensors(tensors, self.rng)
            else:
                about = several(about, change_tree, self.rng)
            try:
                write_safetensors(path, form, tensors, about)
            except (ValueError, TypeError, RuntimeError, SafetensorError, PlaceitError):  # no file can contain this
                return several(content, change_bytes, self.rng)
            return path.read_bytes()
        finally:
            path.unlink(missing_ok=True)

    def cache(self) -> Case:
        model = self.add("onnx", "tiny.onnx")
        first, second = self.devices
        name, content = self.read("cache", ending=".json")
        self.files[f"cache/{name}"] = None if self.rng.random() < 0.05 else change_json(content, self.rng)
        match self.rng.choice(("profile", "profile", "devices", "run")):
            case "devices":
                return self.case("cache", "devices", "-d", f"{first},{second}")
            case "run":
                return self.case("cache", "run", model, "-p", self.add("placement", "split.json"), "--runs", "1")
        return self.case("cache", "profile", model, "-d", f"{first},{second}")

    def inputs(self) -> Case:
        model = self.add("onnx", "tiny.onnx")
        if self.rng.random() < 0.05:
            content = self.read("inputs", "bomb.npz")[1]
        else:
            content = change_archive(
                self.read("inputs", self.rng.choice(("x.npz", "packed.npz")))[1], self.rng, (change_array,)
            )
        self.files["x.npz"] = content
        match self.rng.choice(("run", "run", "simulate")):
            case "simulate":
                return self.simulate("inputs", model, "--placer", "heft", "--inputs", "x.npz")
        words = ("-p", self.add("placement", "split.json"), "--inputs", "x.npz", "--runs", "1", "--outputs", "y.npz")
        return self.case("inputs", "run", model, *words, results=("y.npz",))


TRAIN = (
    *("train", "placeto", "--problems", "problems", "--held-out", "1", "--folder", "run", "--output", "out.safetensors"),
    *("--stage", "reinforce:updates=2,problems=1,episodes=1"),
)
"""The training whose state is among the seeds."""


def _change_tensors(tensors: dict[str, Any], rng: Random) -> None:
    import torch

    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    match rng.choice(("nan", "inf", "drop", "name", "shape", "type", "empty", "huge")):
        case "nan":
            tensors[name] = torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor
        case "inf":
            tensors[name] = torch.full_like(tensor, float("inf")) if tensor.is_floating_point() else tensor
        case "drop":
            del tensors[name]
        case "name":
            tensors[rng.choice(("", "colour", "/", "weights/", "adam/step/", f"{name}/x"))] = tensors.pop(name)
        case "shape":
            tensors[name] = tensor[None]
        case "type":
            tensors[name] = tensor.to(rng.choice((torch.float16, torch.int64, torch.bool, torch.bfloat16, torch.complex64)))
        case "empty":
            tensors[name] = tensor.reshape(-1)[:0]
        case _:
            tensors[name] = tensor * 1e30 if tensor.is_floating_point() else tensor + 2**40


KINDS: Mapping[str, Callable[[_Maker], Case]] = {
    name: getattr(_Maker, name)
    for name in ("onnx", "ir", "pt2", "placement", "cluster", "checkpoint", "training", "cache", "inputs")
}
"""Functions that make a case of each kind."""

_TURNS = (
    *("onnx", "pt2", "cluster", "inputs", "ir", "onnx", "placement", "checkpoint", "cache", "onnx"),
    *("cluster", "ir", "pt2", "placement", "training", "onnx", "inputs", "ir", "pt2", "checkpoint"),
)


def make_case(seeds: Path, devices: tuple[str, str], seed: int, number: int) -> Case:
    """Make a case. Its kind follows from its number; the same seeds, seed and number give the same case."""
    maker = _Maker(seeds, random.Random(f"{seed} {number}"), devices)
    kind = _TURNS[number % len(_TURNS)]
    case = KINDS[kind](maker)
    if kind != "cache":  # the costs of an unchanged model need not be measured repeatedly
        maker.add_all("cache", "cache")
    return case
