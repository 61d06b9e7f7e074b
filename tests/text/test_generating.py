"""Texts that a decoder generates: when they end, and which tokens they have."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders

from examples.decoder import TINY
from placeit.core.errors import ExecutionError, FileError, ModelError, PlacementError, StateMemoryError, UsageError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.serving.sequence import Sequence as ServedSequence
from placeit.text.generating import TextModel, Wanted
from placeit.text.prefixes import Prefixes
from placeit.text.sampling import Sampler, Sampling
from placeit.text.tokenizer import Tokenizer
from tests.small_texts import CONTEXT, failing_sampler, served, write_folder
from tests.text_steps import generate

openvino = import_openvino()

GREEDY = Sampling(temperature=0)
COLUMN = TINY.layers * 2 * TINY.groups * TINY.head * 4  # bytes of a token's state


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with served(write_folder(tmp_path_factory.mktemp("model")), "CPU@0,CPU@1") as found:
        yield found


@pytest.fixture(scope="module")
def model(opened):
    session, server = opened
    return TextModel(server, session.model)


def whole(pieces):
    found = list(pieces)
    return "".join(piece.text for piece in found), found[-1]


def test_the_most_likely_tokens_are_the_ones_of_the_uncut_model(model):
    options = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    request = (
        openvino_core().compile_model(model.tokenizer.folder / "openvino_model.xml", "CPU", options).create_infer_request()
    )
    prompt, beams = model.tokenizer.encode("Once"), {"beam_idx": np.zeros(1, np.int32)}
    tokens, _ = generate(lambda inputs: {"logits": request.infer(inputs | beams)["logits"]}, prompt, 20)
    decode = model.tokenizer.decoder()
    text, last = whole(model.generate(prompt, Wanted(20, sampling=GREEDY)))
    assert text == "".join(map(decode, tokens))
    assert (last.tokens, last.end) == (20, "length")


def test_texts_that_are_generated_at_once_are_those_of_single_prompts(model, opened):
    prompts = [model.tokenizer.encode(text) for text in ("Once", "a much longer prompt", "x", "Twice upon")]
    for rules in (GREEDY, Sampling(seed=5)):
        seeds = [None if rules.seed is None else rules.seed + number for number in range(len(prompts))]
        single = [
            list(model.generate(prompt, Wanted(12, sampling=replace(rules, seed=seed))))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        found = [[] for _ in prompts]
        for number, piece in model.generate_all(prompts, Wanted(12, sampling=rules), at_once=2):
            found[number].append(piece)
            assert sum(bool(pieces) and pieces[-1].end is None for pieces in found) <= 2
        assert found == single
    assert opened[1].stats().sequences == 0


def test_a_text_that_fails_ends_with_its_error_and_the_others_go_on(model, opened, monkeypatch):
    prompts, wanted = [model.tokenizer.encode(text) for text in ("Once", "Twice", "x")], Wanted(6, sampling=Sampling(seed=5))
    expected = [[] for _ in prompts]
    for number, piece in model.generate_all(prompts, wanted):
        expected[number].append(piece)
    monkeypatch.setattr("placeit.text.generating.Sampler", failing_sampler(seed=6, after=3))
    found = [[] for _ in prompts]
    for number, piece in model.generate_all(prompts, wanted, at_once=2):
        found[number].append(piece)
    assert (found[0], found[2], found[1][:3]) == (expected[0], expected[2], expected[1][:3])
    assert (found[1][3].tokens, found[1][3].end, str(found[1][3].error)) == (3, "error", "put in")
    with pytest.raises(ExecutionError, match="put in"):
        list(model.generate(prompts[1], Wanted(6, sampling=Sampling(seed=6))))
    assert opened[1].stats().sequences == 0


def test_a_prompt_that_cannot_be_continued_has_an_error_and_the_other_texts_go_on(model):
    prompts = [[], model.tokenizer.encode("Once"), [5] * 65, [300], model.tokenizer.encode("Twice")]
    found = dict(model.generate_all(prompts, Wanted(6, sampling=GREEDY), at_once=2))
    assert [found[number].end for number in range(5)] == ["error", "length", "error", "error", "length"]
    assert [found[number].tokens for number in range(5)] == [0, 6, 0, 0, 6]
    for number, says in ((0, "has no tokens"), (2, "has 65 tokens"), (3, "the token 300")):
        assert says in str(found[number].error)
    with pytest.raises(UsageError, match="at least 1"):
        next(model.generate_all(prompts[:1], at_once=0))


def test_a_text_ends_before_a_stop_text_that_comes_in_parts(model):
    prompt = model.tokenizer.encode("Once")
    pieces = [piece.text for piece in model.generate(prompt, Wanted(40, sampling=GREEDY))]
    text, shown = "".join(pieces), next(place for place, piece in enumerate(pieces) if place > 3 and piece)
    stop = text[3:6]
    cut, last = whole(model.generate(prompt, Wanted(40, ["nothing like this", stop], GREEDY)))
    assert (cut, last.end) == (text[: text.index(stop)], "stop")
    begun = "".join(pieces[: shown + 1])
    held, last = whole(model.generate(prompt, Wanted(shown + 1, [begun[-1] + "#"], GREEDY)))
    assert (held, last.end) == (begun, "length")  # what was held back is passed on at the end


def test_a_text_ends_with_the_context_and_its_state_is_released(model, opened):
    prompt = model.tokenizer.encode("x" * 50)
    _, last = whole(model.generate(prompt, Wanted(sampling=GREEDY)))
    assert last.tokens == CONTEXT - 50 + 1 or last.end == "stop"
    pieces = model.generate(prompt)
    next(pieces)
    pieces.close()
    assert opened[1].stats().sequences == 0


def test_a_text_that_is_closed_while_a_token_is_chosen_submits_nothing_more(model, opened, monkeypatch):
    chosen, chooses, closed = [], threading.Event(), threading.Event()

    class Waiting(Sampler):
        def choose(self, logits):
            chosen.append(super().choose(logits))
            if len(chosen) == 3:
                chooses.set()
                closed.wait()
            return chosen[-1]

    before = opened[1].stats().outcomes
    with monkeypatch.context() as changed:
        changed.setattr("placeit.text.generating.Sampler", Waiting)
        text = model.generate([5, 6], Wanted(20, sampling=GREEDY))
        next(text)
        chooses.wait()
    text.close()
    closed.set()
    assert whole(model.generate([7], Wanted(2, sampling=GREEDY)))[1].tokens == 2  # on the same thread of the server
    after = opened[1].stats().outcomes
    assert after == before | {"succeeded": before["succeeded"] + 5}


@pytest.mark.parametrize(("prompt", "wanted"), [("", {}), ("x" * 65, {}), ("x" * 60, {"most": 10})])
def test_a_prompt_without_room_in_the_context_is_refused(model, prompt, wanted):
    with pytest.raises(UsageError, match="prompt"):
        next(model.generate(model.tokenizer.encode(prompt), Wanted(**wanted)))


@pytest.mark.parametrize("wanted", [{"most": 0}, {"stop": [""]}, {"stop": ["x"] * 10_000}])
def test_texts_that_cannot_be_wanted_are_refused(wanted):
    with pytest.raises(UsageError):
        Wanted(**wanted)


def test_a_token_that_the_model_does_not_know_is_refused_when_a_prompt_has_it(model, opened, tmp_path):
    vocabulary = {"model": {"type": "WordLevel", "vocab": {str(k): k for k in range(300)}, "unk_token": "0"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **vocabulary}))
    session, server = opened
    other = TextModel(server, session.model, Tokenizer(tmp_path))
    assert whole(other.generate(other.tokenizer.encode("255"), Wanted(2, sampling=GREEDY)))[1].tokens
    with pytest.raises(UsageError, match="has the token 299, and the model knows 256"):
        next(other.generate(other.tokenizer.encode("299")))


def resized(model, **limits):
    inputs = [replace(spec, limits=limits.get(spec.name, spec.limits)) for spec in model.inputs]
    return replace(model, inputs=tuple(inputs))


def requests(server, text):
    before = server.stats().outcomes["succeeded"]
    pieces = list(text)
    return pieces, server.stats().outcomes["succeeded"] - before


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("exact"), exact=True)


@pytest.mark.two_cores
def test_a_long_prompt_is_computed_in_chunks_on_several_devices_and_at_once_on_one(exact):
    prompt, wanted, found = [token % 250 for token in range(300)], Wanted(8, sampling=GREEDY), []
    for devices, longest, steps in (("CPU@0", None, 1), ("CPU@0,CPU@1", None, 3), ("CPU@0", 50, 6)):
        with served(exact, devices, context=320) as (session, server):
            limits = {} if longest is None else {"input_ids": ((1, 1), (1, longest))}
            model = TextModel(server, resized(session.model, **limits))
            pieces, ran = requests(server, model.generate(prompt, wanted))
            assert ran == steps + len(pieces) - 1
            found.append(pieces)
            other = model.generate(prompt[:3], wanted)
            next(other)
            pieces, ran = requests(server, TextModel.generate(model, [*prompt, 7], wanted))
            assert ran - max(0, len(pieces) - 1) >= max(3, steps)  # in chunks, between the steps of the other text
            other.close()
            with pytest.raises(UsageError, match="321 tokens, and 1 more exceed the model's context of 320"):
                next(model.generate([5] * 321))
    assert found[0] == found[1] == found[2]


@pytest.mark.two_cores
def test_a_context_without_room_is_refused_before_anything_is_compiled_with_the_longest_that_fits(model, monkeypatch):
    folder, memory = model.tokenizer.folder, {"CPU@1": 200e3}

    def refused(context):
        with pytest.raises(PlacementError) as error, served(folder, "CPU@0,CPU@1", context=context, memory=memory):
            pass
        return str(error.value)

    with monkeypatch.context() as changed:
        changed.setattr(OpenVinoDevice, "compile", None)
        found = re.search(r"texts of 50000 tokens.* on CPU@1, .*at most (\d+) tokens fit.*shorter --context", refused(50_000))
    longest = int(found[1])
    assert f"at most {longest} tokens fit" in refused(longest + 1)
    with served(folder, "CPU@0,CPU@1", context=longest, memory=memory) as (session, server):
        sequence = server.sequence()
        sequence.run(TextModel(server, session.model).inputs_of([5] * longest, 0))
        room = sequence.line.replica.executor.room_for_state["CPU@1"] * 0.9
        assert 0.99 * room < sequence.line.bytes["CPU@1"] <= room


def test_a_beginning_that_prompts_share_is_computed_once(exact, monkeypatch):
    system, wanted = [token % 250 for token in range(100)], Wanted(5, sampling=GREEDY)
    prompts = [[*system, *range(number, number + 20)] for number in range(4)]
    with served(exact, context=250) as (session, server):
        ran, submit = [], ServedSequence.submit

        def counted(self, inputs, **options):
            ran.append(inputs["input_ids"].shape[1])
            return submit(self, inputs, **options)

        monkeypatch.setattr(ServedSequence, "submit", counted)
        alone = [list(TextModel(server, session.model).generate(prompt, wanted)) for prompt in prompts]
        assert sorted(tokens for tokens in ran if tokens > 1) == [120] * 4
        ran.clear()
        model = TextModel(server, session.model)
        assert [list(model.generate(prompt, wanted)) for prompt in prompts] == alone
        assert [tokens for tokens in ran if tokens > 1] == [120, 100, 20, 20, 20]
        assert (server.stats().sequences, server.stats().state_bytes) == (1, 100 * COLUMN)
        ran.clear()
        longer = [*prompts[1], *range(90)]  # a conversation that goes on
        list(model.generate([*longer, 1], wanted))
        found = list(model.generate([*longer, 2], wanted))
        assert [tokens for tokens in ran if tokens > 1] == [111, 110]
        assert found == list(TextModel(server, session.model).generate([*longer, 2], wanted))


def test_a_text_does_not_wait_for_a_beginning_that_it_does_not_have(exact):
    reading, go = threading.Event(), threading.Event()
    with served(exact, context=200) as (session, server), ThreadPoolExecutor(1) as pool:
        model = TextModel(server, session.model)

        def read(*asked):
            reading.set()
            go.wait(60)
            return model.read(*asked)

        prefixes = Prefixes(server, read)
        prefixes.begin([7] * 100)[0].close()
        first = pool.submit(prefixes.begin, [7] * 100 + [1])
        try:
            assert reading.wait(60)
            assert prefixes.begin([9] * 100)[1] == 0
            assert not first.done()
        finally:
            go.set()
        assert first.result(60)[1] == 100
        assert prefixes.begin([7] * 100 + [2])[1] == 100


def test_states_of_beginnings_take_a_quarter_of_the_memory_at_most(exact):
    prompts, wanted = [[7] * 100 + [number] for number in range(3)], Wanted(3, sampling=GREEDY)
    with served(exact, context=200, state_memory=300 * COLUMN) as (session, server):
        model = TextModel(server, session.model)
        for prompt in prompts:
            assert whole(model.generate(prompt, wanted))[1].tokens
        assert server.stats().sequences == 0


def test_states_of_beginnings_are_dropped_when_a_text_finds_no_memory_or_they_are_lost(exact):
    prompts, wanted = [[7] * 100 + [number] for number in range(4)], Wanted(3, sampling=GREEDY)
    with served(exact, context=200, state_memory=410 * COLUMN) as (session, server):
        model = TextModel(server, session.model)
        for prompt in prompts[:2]:
            expected = whole(model.generate(prompt, wanted))
        (kept,) = server.sequences.open_lines
        kept.failed(ExecutionError("put in"))
        assert whole(model.generate(prompts[1], wanted)) == expected
        assert server.stats().sequences == 0
        for prompt in prompts[2:]:
            assert whole(model.generate(prompt, wanted))[1].tokens == 3
        assert server.stats().sequences == 1
        with server.sequence() as other:
            other.run(model.inputs_of([5] * 190, 0))
            other.run(model.inputs_of([5], 190))
            with server.sequence() as another:
                another.run(model.inputs_of([5] * 115, 0))
                assert whole(model.generate(prompts[0], wanted))[1].tokens == 3
                assert server.stats().sequences == 2


def test_a_chunk_without_memory_ends_the_text_with_its_error(model):
    with served(model.tokenizer.folder, "CPU@0,CPU@1", context=320, state_memory=50e3) as (session, server):
        texts = TextModel(server, session.model)
        with pytest.raises(StateMemoryError, match="has no room"):
            list(texts.generate([5] * 300, Wanted(8, sampling=GREEDY)))
        assert server.stats().sequences == 0
        assert whole(texts.generate([5] * 20, Wanted(2, sampling=GREEDY)))[1].tokens


def test_models_that_are_not_placed_for_a_text_are_refused_when_they_are_opened(opened):
    session, server = opened
    flat = [replace(spec, shape=spec.shape[1:]) for spec in session.model.outputs]
    for model, why in (
        (resized(session.model, input_ids=((2, 2), (1, 8))), "for 2 texts in a step"),
        (resized(session.model, attention_mask=((1, 1), (8, 8))), "for 8 to 8 tokens of 'attention_mask'"),
        (replace(session.model, outputs=tuple(flat)), "logits of rank 3"),
    ):
        with pytest.raises(UsageError, match=why):
            TextModel(server, model)


def test_a_tokenizer_is_found_beside_the_model_or_in_the_folder_above(opened, model, tmp_path):
    session, server = opened
    (tmp_path / "tokenizer.json").write_bytes((model.tokenizer.folder / "tokenizer.json").read_bytes())
    for name, found in (("openvino/openvino_model.xml", tmp_path), ("other/model.onnx", tmp_path / "other")):
        (tmp_path / name).parent.mkdir()
        moved = replace(session.model, path=tmp_path / name)
        if found == tmp_path:
            assert TextModel(server, moved).tokenizer.folder == found
        else:
            with pytest.raises(FileError, match="other"):
                TextModel(server, moved)


def words(folder, *known):
    """Return a tokenizer of words whose texts begin without a space, as SentencePiece has it."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: place for place, word in enumerate(known)}, known[0]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.enable_truncation(2)
    made.enable_padding(length=16)
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def test_a_text_begins_with_the_space_that_its_first_token_has(tmp_path):
    tokenizer = words(tmp_path, "▁a", "▁b", "b")
    assert "".join(map(tokenizer.decoder([0, 1]), [1, 0])) == " b a"
    assert "".join(map(tokenizer.decoder([0, 1]), [2, 0])) == "b a"
    assert "".join(map(tokenizer.decoder(), [1, 0])) == "b a"


def test_a_prompt_that_ends_in_the_middle_of_a_character_goes_on_there(model):
    tokens = model.tokenizer.encode("€" * 6)
    assert "".join(map(model.tokenizer.decoder(tokens[:10]), tokens[10:])) == "€" * 3


def test_bytes_that_are_no_character_do_not_end_a_text(tmp_path):
    vocabulary = {"▁a": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.save(str(tmp_path / "tokenizer.json"))
    part = [1 + byte for byte in "€".encode()]
    tokens = [0, *part, part[0], 0, part[0], part[1], *part, 0]
    assert "".join(map(Tokenizer(tmp_path).decoder(tokens[:1]), tokens[1:])) == "€\ufffd a" + "\ufffd" * 5 + " a"


def test_prompts_are_neither_truncated_nor_padded_as_a_file_says(tmp_path):
    assert words(tmp_path, "▁a", "▁b").encode("a b a b") == [0, 1, 0, 1]


def test_templates_mark_answers_for_training(model, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((model.tokenizer.folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("<{% generation %}{{ messages[0].content }}{% endgeneration %}>")
    found = Tokenizer(tmp_path)
    assert found.chat([{"role": "user", "content": "Hi"}]) == found.encode("<Hi>")


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (messages | length + 8) ** (9 ** 9) }}",
        "{% set all = namespace(text='x') %}{% for a in range(99) %}{% set all.text = all.text ~ all.text %}{% endfor %}",
        "{{ messages[0].content * 10 ** 8 }}",
    ],
)
def test_a_template_without_end_is_stopped_and_the_next_conversation_is_answered(template, model, tmp_path, monkeypatch):
    monkeypatch.setattr("placeit.text.template._PROGRAM", SHORT)
    (tmp_path / "tokenizer.json").write_bytes((model.tokenizer.folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% if messages[0].content == 'Hi' %}" + template + "{% endif %}<Hello>")
    found = Tokenizer(tmp_path)
    with pytest.raises((ModelError, UsageError), match=r"chat template of .* (takes more than|refuses the messages)"):
        found.chat([{"role": "user", "content": "Hi"}])
    assert found.chat([{"role": "user", "content": "Ho"}]) == found.encode("<Hello>")


SHORT = """
import sys
sys.path[:] = sys.argv[1:]
from placeit.text import template
template._SECONDS, template._MEMORY = 1, 300 << 20
template.run()
"""


def test_chat_templates_make_prompts_and_refuse_messages(model, tmp_path):
    tokens = model.tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert "".join(map(model.tokenizer.decoder(), tokens)) == "<user>Hi<assistant>"
    with pytest.raises(UsageError, match="no clowns"):
        model.tokenizer.chat([{"role": "clown", "content": "Hi"}])
    (tmp_path / "tokenizer.json").write_bytes((model.tokenizer.folder / "tokenizer.json").read_bytes())
    with pytest.raises(UsageError, match="has no chat template"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "Hi"}])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [5], "eos_token": 7, "bos_token": {"x": 1}}))
    with pytest.raises(UsageError, match="has no chat template"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "Hi"}])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ["end"]}))
    with pytest.raises(ModelError, match=r"generation_config.json: 'eos_token_id' is \[\"end\"\]; it must be the number"):
        Tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelError, match="is damaged"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "Hi"}])


def drawn(count=2000, **rules):
    sampler, logits = Sampler(Sampling(**{"seed": 1} | rules)), np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32))
    return np.bincount([sampler.choose(logits) for _ in range(count)], minlength=4) / count


def test_tokens_are_drawn_by_their_probabilities():
    np.testing.assert_allclose(drawn(), [0.1, 0.4, 0.3, 0.2], atol=0.05)
    np.testing.assert_allclose(drawn(temperature=0.5), np.array([1, 16, 9, 4]) / 30, atol=0.05)
    np.testing.assert_array_equal(drawn(), drawn())
    assert drawn(temperature=0)[1] == 1


def test_only_the_most_likely_tokens_are_candidates():
    np.testing.assert_allclose(drawn(top_k=2), [0, 4 / 7, 3 / 7, 0], atol=0.05)
    np.testing.assert_allclose(drawn(top_p=0.6), [0, 4 / 7, 3 / 7, 0], atol=0.05)
    assert drawn(top_p=0.01)[1] == 1


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_the_coldest_temperatures_and_largest_logits_take_the_most_likely_token(kind):
    logits = np.array([1, 60000, -60000, -np.inf], kind)
    for rules in ({"temperature": 1e-320}, {"temperature": 1e-320, "top_k": 3}, {"temperature": 1.0}):
        assert Sampler(Sampling(**rules)).choose(logits) == 1


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers_are_an_error(temperature):
    with pytest.raises(ExecutionError, match="logits are not finite"):
        Sampler(Sampling(temperature=temperature)).choose(np.array([1, np.nan, 2], np.float32))


@pytest.mark.parametrize(
    "rules", [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_k": -1}, {"seed": -1}]
)
def test_rules_out_of_range_are_refused(rules):
    with pytest.raises(UsageError):
        Sampling(**rules)
