"""Tokens that a small decoder proposes and the placed one checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import pytest

from placeit.backends.base import Model
from placeit.core.errors import UsageError
from placeit.serving.sequence import Sequence as ServedSequence
from placeit.serving.server import Server
from placeit.text.drafting import Draft
from placeit.text.generating import Piece, TextModel, Wanted
from placeit.text.sampling import Sampling
from tests.small_texts import served, write_folder

GREEDY = Sampling(temperature=0)
CONTEXT = 96


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_folder(tmp_path_factory.mktemp(f"seed{seed}"), exact=True, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def large(folders: list[Path]) -> Iterator[tuple[Server, Model]]:
    with served(folders[0], "CPU@0", context=CONTEXT, logits="all") as (session, server):
        yield server, session.model


@pytest.fixture(scope="module")
def models(folders: list[Path], large: tuple[Server, Model]) -> Iterator[list[TextModel]]:
    """The decoder alone, with itself as a draft, and with another one."""
    with ExitStack() as stack:
        small = [stack.enter_context(served(folder, "CPU@0", context=CONTEXT)) for folder in folders]
        yield [TextModel(*large), *(TextModel(*large, draft=TextModel(server, session.model)) for session, server in small)]


def pieces(model: TextModel, prompt: list[int], wanted: Wanted) -> list[Piece]:
    if model.draft is not None:
        model.draft.pays = True
    return list(model.generate(prompt, wanted))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, top_p=0.8, seed=3)])
def test_tokens_are_the_same_with_and_without_proposals(
    models: list[TextModel], sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, same, other = models
    runs = dict.fromkeys(models, 0)
    submit = ServedSequence.submit

    def counted(self, inputs, **options):  # type: ignore[no-untyped-def]
        runs[now] += self.line in now.server.sequences
        return submit(self, inputs, **options)

    monkeypatch.setattr(ServedSequence, "submit", counted)
    for prompt in ([5, 6, 7], [200] * 20):
        found = []
        for now in models:
            found += [pieces(now, prompt, Wanted(40, sampling=sampling))]
        assert found[0] == found[1] == found[2]
        assert found[0][-1].tokens > 20
    assert same.draft is not None
    assert other.draft is not None
    assert same.draft.kept > other.draft.kept
    if sampling is GREEDY:
        assert same.draft.kept == same.draft.proposed
        assert runs[same] < runs[alone] / 3


def test_a_text_goes_on_to_its_context_though_tokens_that_were_taken_back_fill_the_state(models: list[TextModel]) -> None:
    alone, _, other = models
    wanted = Wanted(sampling=Sampling(temperature=2, seed=1))
    found = pieces(alone, [5] * 10, wanted)
    assert found[-1].tokens == CONTEXT - 10 + 1
    assert pieces(other, [5] * 10, wanted) == found


def test_several_texts_are_generated_as_without_proposals(models: list[TextModel]) -> None:
    prompts, wanted = [[5, 6], [7] * 8, [9]], Wanted(15, sampling=GREEDY)
    found = [sorted(model.generate_all(prompts, wanted), key=lambda one: (one[0], one[1].tokens)) for model in models]
    assert found[0] == found[1] == found[2]


def test_proposals_that_are_there_at_once_are_checked_once(models: list[TextModel], monkeypatch: pytest.MonkeyPatch) -> None:
    same, submit = models[1], ServedSequence.submit

    def waiting(self, inputs, **options):  # type: ignore[no-untyped-def]
        answer = submit(self, inputs, **options)
        if self.line not in same.server.sequences:
            answer.exception()
        return answer

    expected = pieces(models[0], [5, 6, 7], Wanted(20, sampling=GREEDY))
    monkeypatch.setattr(ServedSequence, "submit", waiting)
    assert pieces(same, [5, 6, 7], Wanted(20, sampling=GREEDY)) == expected


def test_a_draft_that_fails_leaves_the_text_to_the_decoder(
    models: list[TextModel], large: tuple[Server, Model], folders: list[Path]
) -> None:
    alone, wanted = models[0], Wanted(30, sampling=GREEDY)
    with served(folders[0], "CPU@0", context=CONTEXT) as (small, its_server):
        model = TextModel(*large, draft=TextModel(its_server, small.model))
        assert model.draft is not None
        model.draft.pays = True
        text = model.generate([5, 6, 7], wanted)
        found = [next(text) for _ in range(3)]
        its_server.close()
        assert [*found, *text] == pieces(alone, [5, 6, 7], wanted)
        assert pieces(model, [5, 6, 7], wanted)[-1].tokens == 30  # it proposes nothing from the beginning


@pytest.mark.parametrize(("seconds", "pays"), [(1.9, True), (2.1, False)])
def test_proposals_go_on_if_a_token_takes_less_time_with_them(models: list[TextModel], seconds: float, pays: bool) -> None:
    draft, found = Draft(models[0].server.sequence(), models[0].read, CONTEXT, 256), SimpleQueue[Sequence[int]]()
    while draft.pays is None:
        proposes = draft.propose([5, 6, 7], 2, found.put)
        assert not proposes or len(found.get()) == 2
        draft.record_step(2 * proposes, 1 * proposes, seconds if proposes else 1.0)  # two tokens, or one
    assert draft.pays is draft.propose([5, 6, 7], 2, found.put) is pays


def test_a_draft_that_does_not_fit_is_refused(large: tuple[Server, Model], folders: list[Path], tmp_path: Path) -> None:
    with served(folders[1], "CPU@0", context=CONTEXT) as (small, server):
        draft = TextModel(server, small.model)
        with pytest.raises(UsageError, match="place it with --logits all"):
            TextModel(server, small.model, draft=draft)
    others = [
        (write_folder(tmp_path, bytes_known=100), None, "give another draft"),
        (folders[1], 1, "as the first size"),
    ]
    for folder, batch, says in others:
        with served(folder, "CPU@0", context=CONTEXT, batch=batch) as (small, server), pytest.raises(UsageError, match=says):
            TextModel(*large, draft=TextModel(server, small.model))
