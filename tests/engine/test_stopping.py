"""Why a choice ends, and what its text is then."""

from dataclasses import replace
from itertools import pairwise

import pytest
from running import check_idle, greedy, prompts, run

from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.params import SamplingParams

PROMPT = "def main(self):\n"


def full(**kwargs):
    """Thirty tokens whatever they are."""
    return greedy(30, ignore_eos=True, **kwargs)


@pytest.fixture(scope="module")
def tiny():
    return Engine(EngineArgs(model="tiny", num_kv_blocks=128))


@pytest.fixture(scope="module")
def whole(tiny):
    """What the prompt goes on with, unstopped."""
    (output,) = run(tiny, [(PROMPT, full())])
    assert output.outputs[0].finish_reason == "length"
    return output.outputs[0]


def stream(engine, prompt, params):
    """Every output of one request."""
    engine.add_request("stream", prompt, params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    check_idle(engine)
    return outputs


def test_streamed_text_only_grows(tiny, whole):
    outputs = stream(tiny, PROMPT, full())
    assert len(outputs) == 30
    texts = [output.outputs[0].text for output in outputs]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1] == whole.text
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 31))
    assert [output.finished for output in outputs] == [False] * 29 + [True]


@pytest.mark.parametrize("start", range(0, 60, 3))
@pytest.mark.parametrize("length", [1, 4, 11])
def test_stop_strings_at_any_place(tiny, whole, start, length):
    """Also across token borders, and never shown, not even for a step."""
    stop = whole.text[start : start + length]
    outputs = stream(tiny, PROMPT, full(stop=["never", stop]))
    final = outputs[-1].outputs[0]
    assert final.text == whole.text[: whole.text.index(stop)]
    assert (final.finish_reason, final.stop_reason) == ("stop", stop)
    assert final.token_ids == whole.token_ids[: len(final.token_ids)]
    for output in outputs:
        assert final.text.startswith(output.outputs[0].text)


def test_held_back_text_is_shown_at_the_end(tiny, whole):
    """The text ends with what could have become a stop string."""
    (output,) = run(tiny, [(PROMPT, full(stop=whole.text[-6:] + "never"))])
    assert output.outputs[0].text == whole.text


def test_stop_token_ids(tiny, whole):
    token_id = whole.token_ids[5]
    first = whole.token_ids.index(token_id)
    (output,) = run(tiny, [(PROMPT, full(stop_token_ids=[token_id]))])
    choice = output.outputs[0]
    assert choice.token_ids == whole.token_ids[: first + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", token_id)
    assert choice.text == tiny.tokenizer.decode(whole.token_ids[:first])


def test_end_of_text(tiny):
    eos = sorted(tiny.limits.eos_token_ids)
    forced = greedy(4, allowed_token_ids=eos)
    (output,) = run(tiny, [(PROMPT, forced)])
    choice = output.outputs[0]
    assert choice.token_ids[0] in eos
    assert (len(choice.token_ids), choice.finish_reason, choice.stop_reason, choice.text) == (1, "stop", None, "")
    (output,) = run(tiny, [(PROMPT, replace(forced, ignore_eos=True))])
    assert len(output.outputs[0].token_ids) == 4
    assert output.outputs[0].finish_reason == "length"


def test_min_tokens_holds_off_every_stop(tiny, whole):
    eos = sorted(tiny.limits.eos_token_ids)
    other = whole.token_ids[0]
    params = greedy(10, min_tokens=3, allowed_token_ids=[*eos, other], logit_bias=dict.fromkeys(eos, 100))
    (output,) = run(tiny, [(PROMPT, params)])
    assert output.outputs[0].token_ids[:3] == [other] * 3
    assert output.outputs[0].token_ids[3] in eos
    stop = whole.text[:2]
    (output,) = run(tiny, [(PROMPT, full(stop=stop, min_tokens=8))])
    assert output.outputs[0].token_ids[:8] == whole.token_ids[:8]
    assert output.outputs[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_bad_words_are_never_completed(tiny, whole, length):
    """As tokens: other tokens may spell the same."""
    word = tiny.tokenizer.decode(whole.token_ids[3 : 3 + length])
    (output,) = run(tiny, [(PROMPT, full(bad_words=[word]))])
    assert output.outputs[0].token_ids[:3] == whole.token_ids[:3]
    spelt = " ".join(map(str, output.outputs[0].token_ids)) + " "
    for text in (word, " " + word.lstrip()):
        ids = tiny.tokenizer.encode(text, add_special_tokens=False)
        assert " ".join(map(str, ids)) + " " not in spelt


def test_context_ends_generation(make_engine):
    engine = make_engine(max_model_len=20)
    (prompt,) = prompts(15)
    (output,) = run(engine, [(prompt, greedy(50))])
    assert len(output.outputs[0].token_ids) == 5
    assert output.outputs[0].finish_reason == "length"


def test_without_detokenize(tiny, whole):
    (output,) = run(tiny, [(PROMPT, full(detokenize=False, logprobs=1))])
    choice = output.outputs[0]
    assert (choice.text, choice.token_ids) == ("", whole.token_ids)
    assert {entry.decoded_token for position in choice.logprobs for entry in position.values()} == {None}


def test_special_tokens_in_the_text(tiny):
    user = tiny.tokenizer.convert_tokens_to_ids("<|user|>")
    params = SamplingParams(temperature=0, max_tokens=2, allowed_token_ids=[user])
    hidden, shown = run(tiny, [(PROMPT, params), (PROMPT, replace(params, skip_special_tokens=False))])
    assert hidden.outputs[0].text == ""
    assert shown.outputs[0].text == "<|user|>" * 2


def test_a_bad_row_ends_its_own_choice_only(make_engine, model_folder, tmp_path):
    """Token 5 is embedded as NaN: whoever reads it fails, and leaves no NaN behind in the cache."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    model.save_pretrained(tmp_path)
    engine = Engine(EngineArgs(model=str(tmp_path), tokenizer="tiny", block_size=4, num_kv_blocks=24, max_num_seqs=4))
    clean = [[t if t != 5 else 6 for t in prompt] for prompt in prompts(9, 14, 6)]
    params = SamplingParams(seed=1, max_tokens=10, logit_bias={5: -100})
    expected = [run(engine, [(p, params)])[0].outputs[0].token_ids for p in clean]
    poisoned = [*clean[0][:4], 5, *clean[0][4:]]
    for _ in range(3):
        (output,) = run(engine, [(poisoned, replace(params, prompt_logprobs=1, max_tokens=0))])
        assert output.outputs[0].finish_reason == "error"
        assert output.prompt_logprobs is None
        engine.add_scoring_request("score", poisoned, [1, 2])
        (output,) = engine.step()
        assert (output.label_logprobs, output.outputs[0].finish_reason) == (None, "error")
        outputs = run(engine, [(p, params) for p in (clean[0], poisoned, clean[1], poisoned, clean[2])])
        assert [o.outputs[0].token_ids for o in outputs] == [expected[0], [], expected[1], [], expected[2]]
        assert outputs[1].outputs[0].finish_reason == "error"
        assert outputs[1].outputs[0].stop_reason == "nonfinite"
    assert not any(pool.isnan().any() for layer in engine._runner.target.pools for pool in layer)
