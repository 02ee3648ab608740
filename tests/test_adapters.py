from functools import partial

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation import logits_process as hf
from transformers.generation.streamers import BaseStreamer

from drawlot import InputError, ParameterError, SamplingParams
from drawlot.adapters.transformers import custom_generate
from drawlot.adapters.transformers_processors import performed

PAD, VOCAB = 0, 160
PROMPTS = [[5, 6, 7, 8, 9], [11, 12], [21, 22, 23]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config).eval()


def padded(prompts):
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, prompts, **kwargs):
    kwargs.setdefault("max_new_tokens", 12)
    kwargs.setdefault("custom_generate", custom_generate)
    return model.generate(**padded(prompts), **kwargs)


def drawn(sequences, prompts):
    return sequences[:, max(map(len, prompts)) :].tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"prefill_chunk_size": 2}],
    ids=["cache", "no cache", "static cache", "chunked prefill"],
)
def test_greedy_equals_plain_generate(model, options):
    plain = generate(model, PROMPTS, custom_generate=None, **options)
    assert generate(model, PROMPTS, **options).tolist() == plain.tolist()
    explicit = generate(model, PROMPTS, sampling_params=SamplingParams(temperature=0, max_tokens=12), **options)
    assert explicit.tolist() == plain.tolist()


def test_a_mask_is_not_needed_without_padding(model):
    ids = torch.tensor(PROMPTS[:1])
    ours = model.generate(ids, custom_generate=custom_generate, max_new_tokens=4)
    assert ours.tolist() == model.generate(ids, max_new_tokens=4).tolist()


def test_greedy_with_processors_equals_plain_generate(model):
    # One row without padding: transformers penalises the padding too, drawlot does not.
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "suppress_tokens": [3, 4]}
    ours = generate(model, PROMPTS[:1], **options)
    assert ours.tolist() == generate(model, PROMPTS[:1], custom_generate=None, **options).tolist()


def test_seeds_reproduce_and_neighbours_do_not_matter(model):
    params = [SamplingParams(seed=s, temperature=0.9, top_k=40, top_p=0.95) for s in (1, 2, -3)]
    together = drawn(generate(model, PROMPTS, sampling_params=params), PROMPTS)
    assert together == drawn(generate(model, PROMPTS, sampling_params=params), PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        assert drawn(generate(model, [prompt], sampling_params=params[i]), [prompt]) == together[i : i + 1]
    back = drawn(generate(model, PROMPTS[::-1], sampling_params=params[::-1]), PROMPTS)
    assert back == together[::-1]
    other = [SamplingParams(seed=s, temperature=0.9) for s in (4, 5, 6)]
    assert drawn(generate(model, PROMPTS, sampling_params=other), PROMPTS) != together


def test_penalties_do_not_see_padding_or_neighbours(model):
    params = SamplingParams(seed=3, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5)
    together = drawn(generate(model, PROMPTS, sampling_params=params), PROMPTS)
    alone = [drawn(generate(model, [p], sampling_params=params), [p])[0] for p in PROMPTS]
    assert together == alone


def test_choices_of_one_prompt_differ(model):
    params = SamplingParams(seed=1)
    three = drawn(generate(model, PROMPTS, sampling_params=params, do_sample=True, num_return_sequences=3), PROMPTS)
    assert len(set(map(tuple, three[:3]))) == 3
    assert three[::3] == drawn(generate(model, PROMPTS, sampling_params=params), PROMPTS)


def test_without_seed_torch_manual_seed_decides(model):
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(generate(model, PROMPTS, do_sample=True, temperature=0.7).tolist())
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_logprobs_are_those_of_the_models_logits(model, mode):
    params = [
        SamplingParams(seed=1, temperature=0.7, logprobs=3, max_tokens=12),
        SamplingParams(seed=2, temperature=0.7, max_tokens=3),
        SamplingParams(seed=3, temperature=0.7, logprob_token_ids=[8, 4], max_tokens=5),
    ]
    out = generate(model, PROMPTS, sampling_params=params, logprobs_mode=mode, return_dict_in_generate=True)
    ids, logprobs, ranks, _ = out.logprobs
    assert ids.shape == logprobs.shape == (3, 12, 4)
    tokens = torch.tensor(drawn(out.sequences, PROMPTS))
    for i, length in ((0, 12), (2, 5)):
        context = torch.tensor([PROMPTS[i] + tokens[i, :length].tolist()])
        logits = model(context).logits[0, len(PROMPTS[i]) - 1 : -1].double()
        expected = (logits if mode == "raw_logprobs" else logits / 0.7).log_softmax(-1)
        columns = 4 if i == 0 else 3
        assert ids[i, :length, 0].tolist() == tokens[i, :length].tolist()
        torch.testing.assert_close(
            logprobs[i, :length, :columns].double(), expected.gather(1, ids[i, :length, :columns]), atol=2e-4, rtol=0
        )
        own = expected.gather(1, tokens[i, :length, None])
        assert ranks[i, :length].tolist() == (1 + (expected > own + 1e-6).sum(1)).tolist()
    assert ids[2, 0, 1:3].tolist() == [8, 4]
    for unused in (ids[1], ids[2, 5:], ids[2, :, 3]):
        assert (unused == -1).all()
    assert (logprobs[1] == -torch.inf).all()
    assert out.status.tolist() == [0, 0, 0]


def test_output_without_logprobs(model):
    out = generate(model, PROMPTS, return_dict_in_generate=True)
    assert out.logprobs is None
    assert out.past_key_values.get_seq_length() == 5 + 11


def test_rows_end_on_their_own(model):
    free = drawn(generate(model, PROMPTS, sampling_params=SamplingParams(seed=1)), PROMPTS)
    params = [
        SamplingParams(seed=1, max_tokens=4),
        SamplingParams(seed=1, stop_token_ids=[free[1][6]]),
        SamplingParams(seed=1, stop_token_ids=[free[2][2]], ignore_eos=True),
    ]
    out = drawn(generate(model, PROMPTS, sampling_params=params, eos_token_id=free[2][5]), PROMPTS)
    first_stop = free[1].index(free[1][6]) + 1
    assert out[0][:4] == free[0][:4]
    assert out[0][4:] == [PAD] * (len(out[0]) - 4)
    assert out[1][:first_stop] == free[1][:first_stop]
    assert out[2][: free[2].index(free[2][2]) + 1] == free[2][: free[2].index(free[2][2]) + 1]


def test_eos_min_tokens_and_ignore_eos(model):
    free = drawn(generate(model, PROMPTS[:1], sampling_params=SamplingParams(seed=1)), PROMPTS[:1])[0]
    eos = free[2]

    def run(**fields):
        params = SamplingParams(seed=1, **fields)
        return drawn(generate(model, PROMPTS[:1], sampling_params=params, eos_token_id=eos), PROMPTS[:1])[0]

    assert run() == free[: free.index(eos) + 1]
    assert run(ignore_eos=True) == free
    later = run(min_tokens=8)
    assert len(later) >= 8
    assert eos not in later[:8]


def test_derived_parameters_draw_as_the_generation_config_says(model):
    # Three tokens are kept, so nothing else may come, and each of them does.
    torch.manual_seed(0)
    many = generate(model, PROMPTS[1:2] * 200, do_sample=True, top_k=3, temperature=2.0, max_new_tokens=1)
    best = model(torch.tensor([PROMPTS[1]])).logits[0, -1].topk(3).indices
    assert set(many[:, -1].tolist()) == set(best.tolist())


@pytest.mark.parametrize(
    ("processors", "fields"),
    [
        ([hf.TemperatureLogitsWarper(0.5), hf.TopKLogitsWarper(7)], {"temperature": 0.5, "top_k": 7}),
        (
            [hf.RepetitionPenaltyLogitsProcessor(1.2), hf.TopPLogitsWarper(0.9)],
            {"repetition_penalty": 1.2, "top_p": 0.9},
        ),
        ([hf.TopKLogitsWarper(7), hf.MinPLogitsWarper(0.1)], {"top_k": 7, "min_p": 0.1}),
        ([hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.0)], {"top_p": 0.9}),
        ([hf.RepetitionPenaltyLogitsProcessor(1.2), hf.NoRepeatNGramLogitsProcessor(2)], {"repetition_penalty": 1.2}),
        ([hf.TypicalLogitsWarper(0.9), hf.TemperatureLogitsWarper(0.5)], {"temperature": 0.5}),
        ([], {}),
    ],
)
def test_processors_become_fields(processors, fields):
    assert performed(processors) == fields


@pytest.mark.parametrize(
    ("processors", "named"),
    [
        ([hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.1)], "MinPLogitsWarper"),
        ([hf.TemperatureLogitsWarper(0.5), hf.TypicalLogitsWarper(0.9)], "TypicalLogitsWarper"),
        ([hf.TemperatureLogitsWarper(0.5), hf.NoRepeatNGramLogitsProcessor(2)], "NoRepeatNGram"),
        ([hf.TopKLogitsWarper(5), hf.TopPLogitsWarper(0.5, min_tokens_to_keep=2)], "TopPLogitsWarper"),
        ([hf.RepetitionPenaltyLogitsProcessor(1.2), hf.SequenceBiasLogitsProcessor([[[3], 1.0]])], "SequenceBias"),
    ],
)
def test_an_order_that_drawlot_cannot_follow_is_refused(processors, named):
    with pytest.raises(ParameterError, match=f"logits_processor: acts after .*{named}"):
        performed(processors)


class Only(LogitsProcessor):
    def __call__(self, input_ids, scores):
        assert scores.dtype == torch.float32
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([30, 40]), 0.0)


def test_foreign_processors_act_first(model):
    out = generate(
        model,
        PROMPTS,
        logits_processor=[Only()],
        sampling_params=SamplingParams(seed=1, logprobs=0),
        repetition_penalty=1.1,
        return_dict_in_generate=True,
    )
    assert set(out.sequences[:, 5:].flatten().tolist()) == {30, 40}
    torch.testing.assert_close(out.logprobs.logprobs, torch.full((3, 12, 1), 0.5).log())


class NothingLeft(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.index_fill(0, torch.tensor([1]), -torch.inf) if input_ids.shape[1] > 7 else scores


def test_a_bad_row_ends_alone(model, caplog):
    params = SamplingParams(seed=1)
    out = generate(
        model, PROMPTS, logits_processor=[NothingLeft()], sampling_params=params, return_dict_in_generate=True
    )
    rows, plain = drawn(out.sequences, PROMPTS), drawn(generate(model, PROMPTS, sampling_params=params), PROMPTS)
    assert (rows[0], rows[2]) == (plain[0], plain[2])
    assert rows[1] == plain[1][:3] + [PAD] * 9
    assert out.status.tolist() == [0, 2, 0]
    assert "row 1 ended early, its logits are bad: EMPTY_SUPPORT" in caplog.text


class AfterThree(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([input_ids.shape[1] >= 8, False, False])


def test_stopping_criteria(model):
    params = SamplingParams(seed=1)
    rows = drawn(generate(model, PROMPTS, stopping_criteria=[AfterThree()], sampling_params=params), PROMPTS)
    assert rows[0][3:] == [PAD] * 9
    assert PAD not in rows[1]


class Kept(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens.append(value.tolist())

    def end(self):
        self.ended = True


def test_streamer(model):
    kept = Kept()
    out = generate(model, PROMPTS, custom_generate=partial(custom_generate, streamer=kept), max_new_tokens=4)
    assert kept.ended
    assert [list(row) for row in zip(*kept.tokens)] == drawn(out, PROMPTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "generation_config: must ask for greedy search or sampling"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores: is not kept"),
        ({"sampling_params": [SamplingParams()] * 2}, "sampling_params: must be one, or one for each of the 3"),
        ({"sampling_params": SamplingParams(n=2)}, "n: .*num_return_sequences"),
        ({"sampling_params": SamplingParams(stop="x")}, "stop: .*StopStringCriteria"),
        ({"sampling_params": SamplingParams(bad_words="x")}, "bad_words: .*bad_words_ids"),
        ({"sampling_params": SamplingParams(prompt_logprobs=1)}, "prompt_logprobs: .*LLM"),
        ({"sampling_params": SamplingParams(logit_bias={VOCAB: 1})}, "logit_bias: token ids must be in"),
        ({"do_sample": True, "top_p": 0.9, "min_p": 0.1}, "logits_processor: acts after TopPLogitsWarper"),
        ({"do_sample": True, "temperature": 0.9, "typical_p": 0.5}, "logits_processor: acts after"),
        ({"logprobs_mode": "best"}, "logprobs_mode: must be one of"),
    ],
)
def test_refused(model, options, message):
    with pytest.raises(ParameterError, match=message):
        generate(model, PROMPTS, **options)


def test_right_padding_and_missing_ids_are_refused(model):
    ids, mask = padded(PROMPTS).values()
    with pytest.raises(InputError, match="padded on the left"):
        model.generate(ids.flip(1), attention_mask=mask.flip(1), custom_generate=custom_generate, max_new_tokens=2)
    embeddings = model.get_input_embeddings()(ids)
    with pytest.raises(InputError, match="must hold the whole prompt"):
        model.generate(inputs_embeds=embeddings, attention_mask=mask, custom_generate=custom_generate, max_new_tokens=2)


def test_encoder_decoder_is_refused():
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(InputError, match="decoder-only"):
        T5ForConditionalGeneration(config).generate(
            torch.tensor([[3, 4]]), custom_generate=custom_generate, max_new_tokens=2
        )
