"""What is not simulated is measured once, however often training is killed."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from placeit.core.errors import FileError, TrainingError, UsageError
from placeit.learning.checkpoint import read_checkpoint, weights_of
from placeit.learning.training.loop import Stage, train
from tests.learning.toy_agent import FEW, ExploringAgent, draw_toys, same, stage, toy

CHILD = """
import os, random, signal, sys, time
import numpy as np, torch
sys.path.insert(0, {root!r})
from tests.learning.toy_agent import ExploringAgent, FEW, draw_toys
from placeit.learning.training.loop import Stage, train
torch.set_num_threads(1)

def noisy(instance):
    def cost(placements):
        with open({folder!r} + "/asked", "a") as file:
            file.write(f"{{len(placements)}}\\n")
        time.sleep(0.001 * random.random())
        costs = instance.cost(placements) * (1 + 0.2 * np.array([random.random() for _ in placements]))
        return np.where([random.random() < 0.2 for _ in placements], np.nan, costs)
    return cost

def run():
    random.seed()
    torch.manual_seed(0)
    options = {{"learning_rate": 0.03, "evaluate_every": 4, "explore": 0.3}}
    stages = [
        Stage(draw_toys, 8, problems=3, **options),
        Stage(draw_toys, {updates}, problems=4, baseline="moving", cost="noisy", **options),
    ]
    folder = {folder!r} + "/run"
    train(ExploringAgent(), stages, evaluate_on=FEW, seed=3, costs={{"noisy": noisy}}, folder=folder, resume=True)

FEW[0].cost(FEW[0].problem.compute.argmin(axis=1).astype(np.int32)[None])  # compiles
rng, kills, left = random.Random(5), 0, {kills}
while True:
    child = os.fork()
    if not child:
        run()
        os._exit(0)
    time.sleep(rng.uniform(0.01, 0.5))
    if kills < left and os.waitpid(child, os.WNOHANG) == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        continue
    break
while kills == left and os.waitpid(child, os.WNOHANG) == (0, 0):
    time.sleep(0.01)
print(kills)
"""


def told(folder):
    """What the journal holds, in order: problem and placement, and cost."""
    lines = [json.loads(line) for line in (folder / "costs.jsonl").read_text().splitlines()]
    return [((line["problem"], tuple(line["placement"])), float(line["value"])) for line in lines[1:]]


def replaying(folder):
    """Make cost functions that give what the journal of another training holds, in its order, and nothing else."""
    left = collections.defaultdict(collections.deque)
    for key, cost in told(folder):
        left[key].append(cost)

    def factory(instance):
        return lambda placements: np.array([left[instance.problem.key, tuple(row)].popleft() for row in placements.tolist()])

    return factory, left


@pytest.mark.parametrize(("updates", "most", "least"), [(20, 4, 1), pytest.param(300, 100, 50, marks=pytest.mark.nightly)])
def test_a_training_that_was_killed_at_any_moment_gives_the_weights_of_one_that_was_not(tmp_path, updates, most, least):
    code = CHILD.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path), updates=updates, kills=most)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    kills = int(done.stdout)
    assert kills >= least
    finished = read_checkpoint(tmp_path / "run" / "best.safetensors").weights

    factory, left = replaying(tmp_path / "run")
    torch.manual_seed(0)
    agent = ExploringAgent()
    options = {"learning_rate": 0.03, "evaluate_every": 4, "explore": 0.3}
    stages = [
        Stage(draw_toys, 8, problems=3, **options),
        Stage(draw_toys, updates, problems=4, baseline="moving", cost="noisy", **options),
    ]
    result = train(agent, stages, evaluate_on=FEW, seed=3, costs={"noisy": factory}, folder=tmp_path / "whole")
    assert same(weights_of(agent), finished)
    assert not any(left.values())  # and it asked for all of them
    assert result.stages[1].dropped > 0
    logs = [(tmp_path / name / "log.csv").read_text().splitlines() for name in ("run", "whole")]
    assert [without_seconds(row) for row in logs[0]] == [without_seconds(row) for row in logs[1]]
    asked = sum(int(line) for line in (tmp_path / "asked").read_text().split())
    known = len(told(tmp_path / "run"))
    assert known <= asked <= known + 6 * kills  # at most what was under way: at most six placements are asked for at once


def without_seconds(row):
    cells = row.split(",")
    return cells[:2] + cells[3:]


def counting(asked, cost=lambda instance, placements: instance.cost(placements)):
    def factory(instance):
        def measured(placements):
            asked.extend(placements.tolist())
            return cost(instance, placements)

        return measured

    return factory


def test_a_placement_that_was_measured_is_not_measured_again(tmp_path):
    asked = []
    stages = [Stage(lambda *_: FEW, 30, cost="measured"), Stage(lambda *_: FEW[:1], 5, episodes=4, cost="measured")]
    train(toy(), stages, evaluate_on=FEW, seed=0, costs={"measured": counting(asked)}, folder=tmp_path)
    assert len(asked) == len(told(tmp_path)) == len(dict(told(tmp_path)))
    without_a_folder = []
    train(toy(), stages, evaluate_on=FEW, seed=0, costs={"measured": counting(without_a_folder)})
    assert without_a_folder == asked


def test_what_could_not_be_measured_is_asked_for_again(tmp_path):
    asked = []
    fails = counting(asked, lambda instance, placements: np.full(len(placements), np.nan))
    train(
        toy(),
        [Stage(lambda *_: FEW[:1], 9, cost="measured", episodes=20)],
        evaluate_on=(),
        seed=0,
        costs={"measured": fails},
        folder=tmp_path,
    )
    counts = collections.Counter(map(tuple, asked))
    assert max(counts.values()) > 1
    assert len(asked) == len(told(tmp_path))
    assert all(np.isnan(cost) for _, cost in told(tmp_path))


def test_a_simulated_stage_keeps_no_journal(tmp_path):
    train(toy(), [stage(3)], evaluate_on=FEW, seed=0, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors", "log.csv", "state.safetensors"]


def stopped(folder, cost=None):
    """Train for four updates of eight, measured ones."""

    def interrupt(_, share):
        if share == 0.5:
            raise InterruptedError

    costs = {"measured": counting([]) if cost is None else cost}
    with pytest.raises(InterruptedError):
        train(toy(), [stage(8, cost="measured")], evaluate_on=FEW, seed=0, costs=costs, folder=folder, progress=interrupt)
    return folder / "costs.jsonl"


def resumed(folder, asked=None):
    agent, asked = toy(), [] if asked is None else asked
    train(
        agent,
        [stage(8, cost="measured")],
        evaluate_on=FEW,
        seed=0,
        costs={"measured": counting(asked)},
        folder=folder,
        resume=True,
    )
    return agent


def test_a_line_that_was_not_completed_is_dropped(tmp_path):
    journal = stopped(tmp_path)
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"cost": "measured", "pro')
    resumed(tmp_path)
    assert journal.read_bytes().startswith(whole)
    told(tmp_path)


@pytest.mark.parametrize(
    ("line", "harm"),
    [
        (2, b"{}"),
        (2, b"[1]"),
        (3, b"nothing"),
        (2, b'{"cost": "measured", "problem": "x", "placement": [1e400], "value": 1}'),
        (2, b'{"cost": "measured", "problem": "x", "placement": [[1]], "value": 1}'),
        (2, b'{"cost": 1, "problem": "x", "placement": [1], "value": 1}'),
        (2, b'{"cost": "measured", "problem": "x", "placement": [1], "value": "fast"}'),
    ],
)
def test_a_damaged_journal_is_an_error_that_names_the_line(tmp_path, line, harm):
    journal = stopped(tmp_path)
    lines = journal.read_bytes().split(b"\n")
    lines[line - 1] = harm
    journal.write_bytes(b"\n".join(lines))
    with pytest.raises(FileError, match=rf"costs\.jsonl, line {line} is damaged"):
        resumed(tmp_path)


def test_a_journal_that_lacks_costs_is_an_error(tmp_path):
    journal = stopped(tmp_path)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(
        FileError, match=r"costs\.jsonl holds \d+ costs, and training had received \d+ when its state was saved"
    ):
        resumed(tmp_path)
    journal.unlink()
    with pytest.raises(FileError, match="holds 0 costs"):
        resumed(tmp_path)


def test_a_journal_of_another_training_or_none_is_refused(tmp_path):
    journal = stopped(tmp_path)
    head, rest = journal.read_bytes().split(b"\n", 1)
    journal.write_bytes(json.dumps(json.loads(head) | {"training": "0" * 32}).encode() + b"\n" + rest)
    with pytest.raises(UsageError, match="holds the costs of another training"):
        resumed(tmp_path)
    journal.write_bytes(b'{"format": "another"}\n' + rest)
    with pytest.raises(FileError, match="is not a file of costs"):
        resumed(tmp_path)


def test_a_folder_with_a_journal_alone_is_not_overwritten(tmp_path):
    stopped(tmp_path)
    (tmp_path / "state.safetensors").unlink()
    with pytest.raises(UsageError, match="holds the state of a training already"):
        train(toy(), [stage(8, cost="measured")], evaluate_on=FEW, seed=0, costs={"measured": counting([])}, folder=tmp_path)
    asked = []
    before = len(told(tmp_path))
    agent, whole = resumed(tmp_path, asked), toy()
    train(whole, [stage(8, cost="measured")], evaluate_on=FEW, seed=0, costs={"measured": counting([])})
    assert same(weights_of(agent), weights_of(whole))
    assert len(asked) == len(told(tmp_path)) - before


def test_a_cost_function_that_gives_something_else_is_an_error(tmp_path):
    odd = counting([], lambda instance, placements: np.ones((len(placements), 2)))
    with pytest.raises(TrainingError, match=r"cost 'measured' gave \(3, 2\) values for 3 placements|must give one for each"):
        train(
            toy(),
            [Stage(lambda *_: FEW[:1], 1, cost="measured", episodes=9)],
            evaluate_on=(),
            seed=0,
            costs={"measured": odd},
            folder=tmp_path,
        )


def test_a_journal_that_cannot_be_written_ends_training_with_an_error_that_says_so(tmp_path):
    stopped(tmp_path)
    (tmp_path / "costs.jsonl").rename(tmp_path / "kept")
    (tmp_path / "costs.jsonl").mkdir()
    with pytest.raises(FileError, match=r"Cannot read .*costs\.jsonl"):
        resumed(tmp_path)
