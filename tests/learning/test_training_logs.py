import csv
import importlib
import types

import pytest

from placeit.core.errors import UsageError
from placeit.learning.training.loop import train
from tests.learning.toy_agent import FEW, stage, toy


def test_the_log_holds_every_update(tmp_path):
    result = train(toy(), [stage(4)], evaluate_on=FEW, seed=0, folder=tmp_path / "new" / "folder")
    with (tmp_path / "new" / "folder" / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    heads = [
        "stage",
        "update",
        "seconds",
        "loss",
        "reward",
        "return",
        "entropy",
        "gradient norm",
        "learning rate",
        "evaluation",
        "dropped",
    ]
    assert list(rows[0]) == heads
    assert [row["update"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["evaluation"] != "" for row in rows] == [True, False, False, False, True]
    assert float(rows[-1]["gradient norm"]) == result.history[-1].gradient_norm


def test_tensorboard_gets_the_same_figures(tmp_path, monkeypatch):
    told = []

    class Writer:
        def __init__(self, folder, purge_step):
            told.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def close(self):
            told.append("closed")

    real = importlib.import_module
    fake = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setattr(importlib, "import_module", lambda name: fake if name == "torch.utils.tensorboard" else real(name))
    result = train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=tmp_path, tensorboard=True)
    assert told[0] == (str(tmp_path / "tensorboard"), 0)
    assert ("return", result.history[2].episode_return, 2) in told
    assert ("evaluation", result.best, 0) in told or result.best_at != (1, 0)
    assert told[-1] == "closed"


def test_tensorboard_that_is_not_installed_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(importlib.sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"TensorBoard cannot be used here .*pip install tensorboard"):
        train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=tmp_path, tensorboard=True)
    with pytest.raises(UsageError, match="need a folder"):
        train(toy(), [stage(2)], evaluate_on=FEW, seed=0, tensorboard=True)
