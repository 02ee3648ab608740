"""Decode steps of fixed shape, as a GPU runs them, draw the tokens of the flat path; each step launches the next."""

import random
from dataclasses import replace

import pytest
import torch
import torch_paged_attention
from running import check_idle, greedy, preempt, prompts, run, tokens
from test_batching import MIXED, SAMPLED
from torch.utils._python_dispatch import TorchDispatchMode

from drawlot.engine import decode
from drawlot.engine.args import EngineArgs
from drawlot.engine.cuda_graphs import batch_sizes
from drawlot.engine.engine import Engine
from drawlot.errors import ModelError
from drawlot.params import SamplingParams


def with_decoder(engine):
    """The engine with the decoder of a GPU, without graphs."""
    runner = engine._runner
    runner.decoder = decode.Decoder(runner.model, engine.config, runner.target.pools, runner.sampler, capture=False)
    return engine


@pytest.fixture
def torch_attention(monkeypatch):
    monkeypatch.setattr(decode, "paged_attention", torch_paged_attention)


@pytest.fixture
def make_decoding(make_engine, torch_attention):
    return lambda name="llama", **args: with_decoder(make_engine(name, **args))


@pytest.fixture(scope="module")
def expected(make_engine):
    """Each request alone, by the flat path."""
    engine = make_engine(enable_prefix_caching=False)
    return [run(engine, [request])[0] for request in MIXED]


def logprobs(output):
    """Of every token of every choice, as numbers."""
    return [
        value.logprob for choice in output.outputs for position in choice.logprobs or () for value in position.values()
    ]


def count_ahead(engine, monkeypatch):
    """How often a step was launched before its predecessor's tokens were known."""
    launched = []
    run_ahead = engine._scheduler.run_ahead
    monkeypatch.setattr(engine._scheduler, "run_ahead", lambda: launched.append(bool(chunks := run_ahead())) or chunks)
    return launched


def test_equals_the_flat_path(make_decoding, expected, monkeypatch):
    engine = make_decoding()
    launched = count_ahead(engine, monkeypatch)
    outputs = run(engine, MIXED)
    assert tokens(outputs) == tokens(expected)
    # As all logprobs through the engine: on some CPUs products of other shapes differ by more than 1e-5.
    assert [logprobs(output) for output in outputs] == [pytest.approx(logprobs(o), abs=1e-4) for o in expected]
    assert sum(launched) >= 10


def test_by_the_kernels(make_engine):
    requests = [(prompt, greedy(3)) for prompt in prompts(2, 9, 5)]
    assert tokens(run(with_decoder(make_engine()), requests)) == tokens(run(make_engine(), requests))


@pytest.mark.parametrize("max_num_batched_tokens", [1, 5, 16])
def test_chunked_prefill(make_decoding, expected, max_num_batched_tokens):
    engine = make_decoding(max_num_batched_tokens=max_num_batched_tokens)
    assert tokens(run(engine, MIXED)) == tokens(expected)


@pytest.mark.parametrize("num_kv_blocks", [12, 15, 20])
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_preemption(make_decoding, expected, num_kv_blocks, enable_prefix_caching):
    engine = make_decoding(num_kv_blocks=num_kv_blocks, enable_prefix_caching=enable_prefix_caching)
    assert tokens(run(engine, MIXED)) == tokens(expected)
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("at", [1, 2, 7, 13])
def test_preemption_of_a_choice_whose_token_is_on_its_way(make_decoding, expected, at):
    engine = make_decoding()
    engine.add_request("a", *MIXED[3])
    for step in range(100):
        if not engine.has_unfinished_requests():
            break
        if step == at:
            preempt(engine)
        for output in engine.step():
            last = output
    assert tokens([last]) == tokens([expected[3]])
    check_idle(engine)


def test_prefix_cache(make_engine, make_decoding, expected):
    """As many tokens come from it as in the flat path: also of outputs, whose tokens were on their way."""
    flat, engine = make_engine(), make_decoding()
    again = [(o.prompt_token_ids + o.outputs[0].token_ids, greedy(2)) for o in expected]
    for requests in (MIXED, again, MIXED):
        assert tokens(run(engine, requests)) == tokens(run(flat, requests))
        assert engine.stats.cached_tokens == flat.stats.cached_tokens > 0


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_other_attention(make_engine, make_decoding, name):
    """Sliding windows, capped scores, sinks, values narrower than keys."""
    requests = [(prompt, replace(SAMPLED, max_tokens=20)) for prompt in prompts(4, 11, 30)]
    wanted = tokens(run(make_engine(name), requests))
    assert tokens(run(make_decoding(name, num_kv_blocks=24, max_num_batched_tokens=9), requests)) == wanted


def test_what_is_drawn_after_the_end_is_thrown_away(make_engine, make_decoding, monkeypatch):
    """Each request ends with a stop token at another step, when the step after has been launched."""
    requests = []
    for i, prompt in enumerate(prompts(5, 9, 3, 12)):
        (whole,) = run(make_engine(), [(prompt, greedy(20))])
        requests.append((prompt, greedy(20, stop_token_ids=[whole.outputs[0].token_ids[2 + 3 * i]])))
    wanted = run(make_engine(), requests)
    engine = make_decoding()
    launched = count_ahead(engine, monkeypatch)
    outputs = run(engine, requests)
    assert tokens(outputs) == tokens(wanted)
    assert [o.outputs[0].stop_reason for o in outputs] == [params.stop_token_ids[0] for _, params in requests]
    assert engine.stats.generated_tokens == sum(len(o.outputs[0].token_ids) for o in wanted)
    assert sum(launched) >= 5
    # A step that nobody waits for is still under way.
    (prompt, params), *_ = requests
    assert engine._ahead is not None
    assert tokens(run(engine, [(prompt, params)])) == tokens(wanted)[:1]


def test_a_bad_row_ends_its_own_choice_only(make_decoding, model_folder, tmp_path):
    """Token 5 is embedded as NaN, and one request draws it: the next step, and the one launched after that, are bad."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    model.save_pretrained(tmp_path)
    args = {"model": str(tmp_path), "tokenizer": "tiny", "block_size": 4, "num_kv_blocks": 24, "max_num_seqs": 4}
    params = SamplingParams(seed=1, max_tokens=12, logit_bias={5: -100})
    clean, drawing = prompts(9, 6), SamplingParams(temperature=0, max_tokens=12, logit_bias={5: 100})
    clean = [[t if t != 5 else 6 for t in prompt] for prompt in clean]
    wanted = tokens(run(Engine(EngineArgs(**args)), [(p, params) for p in clean]))
    engine = with_decoder(Engine(EngineArgs(**args)))
    for _ in range(3):
        outputs = run(engine, [(clean[0], params), (clean[1], drawing), (clean[1], params)])
        assert tokens(outputs) == [wanted[0], [[5]], wanted[1]]
        assert outputs[1].outputs[0].finish_reason == "error"
        assert outputs[1].outputs[0].stop_reason == "nonfinite"
    assert not any(pool.isnan().any() for layer in engine._runner.target.pools for pool in layer)


@pytest.mark.parametrize("seed", range(6))
def test_random_interleavings(make_engine, make_decoding, seed):
    """Requests come, end early and are dropped while steps are under way."""
    rng = random.Random(seed)
    alone = make_engine(enable_prefix_caching=False)
    engine = make_decoding(
        num_kv_blocks=rng.randrange(13, 40),
        max_num_seqs=rng.randrange(1, 7),
        max_num_batched_tokens=rng.randrange(4, 40),
    )
    (shared,) = prompts(9, seed=seed)
    asked, results = {}, {}
    for i in range(80):
        action = rng.random()
        if action < 0.15:
            (tail,) = prompts(rng.randrange(1, 25), seed=i + 1000 * seed)
            prompt = (shared if rng.random() < 0.5 else []) + tail
            params = SamplingParams(
                seed=i, max_tokens=rng.randrange(1, 16), n=rng.choice([1, 1, 2]), stop_token_ids=range(6)
            )
            asked[str(i)] = prompt, params
            engine.add_request(str(i), prompt, params)
        elif action < 0.2 and asked.keys() - results.keys():
            dropped = rng.choice(sorted(asked.keys() - results.keys()))
            engine.abort(dropped)
            del asked[dropped]
        else:
            results |= {output.request_id: output for output in engine.step() if output.finished}
    while engine.has_unfinished_requests():
        results |= {output.request_id: output for output in engine.step() if output.finished}
    check_idle(engine)
    assert results.keys() == asked.keys()
    for request_id, request in asked.items():
        assert tokens([results[request_id]]) == tokens(run(alone, [request]))


def test_embedded_model(torch_attention):
    """Text, stop strings and end-of-text tokens."""
    requests = [
        (text, SamplingParams(temperature=0.8, seed=3, max_tokens=30, stop=stop))
        for text, stop in [("def main(self):\n", "\n\n"), ("import os\n\nclass ", ()), ("x = [", "]")]
    ]
    wanted = run(Engine(EngineArgs(num_kv_blocks=128)), requests)
    outputs = run(with_decoder(Engine(EngineArgs(num_kv_blocks=128))), requests)
    assert tokens(outputs) == tokens(wanted)
    assert [o.outputs[0].text for o in outputs] == [o.outputs[0].text for o in wanted]


def test_padding_touches_nothing(make_engine, make_decoding):
    """Neither cache nor history of a request, whichever row it has; three of five rows run at the end, as four."""
    penalised = replace(SAMPLED, presence_penalty=2.0, repetition_penalty=1.5)
    requests = [
        (prompt, replace(penalised, seed=i, max_tokens=length))
        for i, (prompt, length) in enumerate(zip(prompts(5, 6, 7, 3, 8), (3, 5, 14, 14, 14)))
    ]
    engine = make_decoding(max_num_seqs=5)
    assert tokens(run(engine, requests)) == tokens(run(make_engine(), requests))
    assert not any(half[0].any() for pool in engine._runner.target.pools for half in pool)


def test_steps_that_only_score_are_not_decoded(make_engine, make_decoding):
    outputs = []
    for make in (make_engine, make_decoding):
        engine = make(max_num_batched_tokens=1)
        engine.add_scoring_request("score", [3], [1, 2])
        outputs += engine.step()
        outputs += run(engine, [(prompts(3)[0], greedy(0, prompt_logprobs=1))])
    score, prompt_logprobs, decoding_score, decoding_prompt_logprobs = outputs
    assert decoding_score.label_logprobs == score.label_logprobs
    assert decoding_prompt_logprobs.prompt_logprobs == prompt_logprobs.prompt_logprobs


def test_no_step_is_launched_in_vain(make_engine, make_decoding):
    """What ends by its length is known to end; here it also fills the last block of its table."""
    requests = [(prompt, greedy(50)) for prompt in prompts(15, 9)]
    flat, engine = make_engine(max_model_len=20), make_decoding(max_model_len=20)
    assert tokens(run(engine, requests)) == tokens(run(flat, requests))
    assert engine.stats.computed_tokens == flat.stats.computed_tokens


def test_nobody_waits_for_a_free_row(make_decoding):
    engine = make_decoding()
    engine.add_request("long", prompts(5)[0], greedy(60))
    for _ in range(5):
        engine.step()
    engine.add_request("new", prompts(6)[0], greedy(4))
    assert any(output.request_id == "new" for _ in range(2) for output in engine.step())


def test_only_a_step_under_way_can_be_followed(make_engine):
    engine = make_engine()
    engine.add_request("a", prompts(5)[0], greedy(9))
    engine.step()
    assert engine._scheduler.running
    assert engine._scheduler.run_ahead() == []


def test_canary_sees_a_wrong_decoder(model_folder, torch_attention, monkeypatch):
    from transformers import AutoModelForCausalLM

    from drawlot.engine.adapters.canary import examine

    def load():
        return AutoModelForCausalLM.from_pretrained(model_folder("llama"), attn_implementation="eager").eval()

    examine(load(), "llama", by_decoder=True)
    attend = torch_paged_attention.attend
    monkeypatch.setattr(
        torch_paged_attention, "attend", lambda *args, **kwargs: attend(*args, **kwargs | {"window": 3})
    )
    with pytest.raises(ModelError, match="gives other logits"):
        examine(load(), "llama", by_decoder=True)
    examine(load(), "llama", by_decoder=False)


def test_what_cannot_be_captured_is_refused(make_engine, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(decode, "Decoder", refuse)
    with pytest.raises(
        ModelError, match=r"'llama' cannot decode by CUDA graph \(enforce_eager does without\): operation"
    ):
        make_engine()._runner._decoder()


class Waits(TorchDispatchMode):
    """Fails where the host would wait for a GPU, or a shape depend on its data: what a graph cannot hold."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        refused = name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique")
        if name == "index":
            refused = any(i is not None and i.dtype == torch.bool for i in args[1])
        assert not refused, name
        return function(*args, **kwargs)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3", "gemma2", "gpt2", "gpt_oss", "deepseek_v3"])
def test_forward_waits_for_nothing(make_decoding, name, monkeypatch):
    decoder = make_decoding(name)._runner.decoder
    monkeypatch.setattr(torch_paged_attention, "store", lambda *_: None)
    monkeypatch.setattr(
        torch_paged_attention, "attend", lambda q, _, values, *rest, **kw: q.transpose(1, 2)[..., : values.shape[3]]
    )
    with torch.inference_mode(), Waits():
        decoder.forward(4)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Waits():
        torch.ones(2).max().item()


def test_sizes_of_graphs():
    assert batch_sizes(1) == [1]
    assert batch_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert batch_sizes(100) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100]
    assert len(batch_sizes(4096)) == 35
    assert all(b - a <= max(8, a / 4) for a, b in zip(batch_sizes(4096), batch_sizes(4096)[1:]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_graphs_equal_eager_steps(make_engine, name):
    args = {"device": "cuda", "dtype": "float32"}
    wanted = tokens(run(make_engine(name, **args, enforce_eager=True), MIXED))
    engine = make_engine(name, **args)
    assert engine._runner.decoder is not None
    for _ in range(2):
        assert tokens(run(engine, MIXED)) == wanted
