"""A request's tokens depend on its prompt, parameters and seed alone; whatever happens, everything is given back."""

import random
from dataclasses import replace

import pytest
from running import check_idle, greedy, preempt, prompts, run, tokens

from drawlot.errors import ParameterError
from drawlot.params import SamplingParams

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=14)
MIXED = [
    (prompt, params)
    for prompt, params in zip(
        prompts(5, 18, 1, 9, 33, 12),
        [
            greedy(14),
            SAMPLED,
            replace(SAMPLED, seed=-1, top_k=5, max_tokens=20),
            replace(SAMPLED, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
            replace(SAMPLED, seed=0, min_p=0.1, max_tokens=3),
            replace(SAMPLED, n=3, logprobs=2),
        ],
    )
]


@pytest.fixture(scope="module")
def expected(make_engine):
    """Each request alone, its prompt in one piece, in a cache that is large enough."""
    engine = make_engine(enable_prefix_caching=False)
    return [tokens(run(engine, [request]))[0] for request in MIXED]


def test_many_equal_alone(make_engine, expected):
    assert tokens(run(make_engine(), MIXED)) == expected


def test_order_does_not_matter(make_engine, expected):
    assert tokens(run(make_engine(max_num_seqs=3), MIXED[::-1])) == expected[::-1]


@pytest.mark.parametrize("max_num_batched_tokens", [1, 5, 16])
def test_chunked_prefill(make_engine, expected, max_num_batched_tokens):
    assert tokens(run(make_engine(max_num_batched_tokens=max_num_batched_tokens), MIXED)) == expected


@pytest.mark.parametrize("num_kv_blocks", range(12, 25, 2))
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_preemption(make_engine, expected, num_kv_blocks, enable_prefix_caching):
    engine = make_engine(num_kv_blocks=num_kv_blocks, enable_prefix_caching=enable_prefix_caching)
    assert tokens(run(engine, MIXED)) == expected
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("at", range(1, 14))
def test_preemption_at_any_step(make_engine, expected, at):
    engine = make_engine()
    engine.add_request("a", *MIXED[3])
    output = None
    for step in range(100):
        if not engine.has_unfinished_requests():
            break
        if step == at:
            preempt(engine)
        (output,) = engine.step()
    assert tokens([output]) == [expected[3]]
    check_idle(engine)


@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_oss"])
def test_sliding_windows_survive_chunks_and_preemption(make_engine, name):
    alone = make_engine(name, enable_prefix_caching=False)
    wanted = [tokens(run(alone, [request]))[0] for request in MIXED]
    small = make_engine(name, num_kv_blocks=14, max_num_batched_tokens=7)
    assert tokens(run(small, MIXED)) == wanted
    assert small.stats.preemptions > 0


def test_prefix_cache_changes_no_token(make_engine, expected):
    engine = make_engine()
    first = run(engine, MIXED)
    cached = engine.stats.cached_tokens
    second = run(engine, MIXED)
    assert tokens(first) == tokens(second) == expected
    assert engine.stats.cached_tokens - cached >= sum(len(prompt) // 4 * 4 - 4 for prompt, _ in MIXED)


def test_choices_of_one_prompt_share_its_blocks(make_engine):
    engine = make_engine()
    (prompt,) = prompts(21)
    run(engine, [(prompt, replace(SAMPLED, n=4, max_tokens=2))])
    assert engine.stats.cached_tokens == 3 * 20


def test_choices_differ_and_come_back_alone(make_engine):
    engine = make_engine()
    (prompt,) = prompts(10)
    params = replace(SAMPLED, temperature=1.5, top_p=1.0)
    (many,) = tokens(run(engine, [(prompt, replace(params, n=4))]))
    assert len({tuple(choice) for choice in many}) == 4
    (two,) = tokens(run(engine, [(prompt, replace(params, n=2))]))
    assert two == many[:2]


def test_unseeded_requests_differ_and_follow_the_engine_seed(make_engine):
    (prompt,) = prompts(10)
    requests = [(prompt, SamplingParams(max_tokens=10))] * 3
    first = tokens(run(make_engine(seed=5), requests))
    assert len({tuple(choices[0]) for choices in first}) == 3
    assert tokens(run(make_engine(seed=5), requests)) == first
    assert tokens(run(make_engine(seed=-5), requests)) != first
    assert tokens(run(make_engine(seed=None), requests)) != tokens(run(make_engine(seed=None), requests))


def test_abort_frees_everything(make_engine):
    engine = make_engine(num_kv_blocks=20, max_num_batched_tokens=8)
    for i, (prompt, params) in enumerate(MIXED):
        engine.add_request(str(i), prompt, params)
    for _ in range(5):
        engine.step()
    for i in range(len(MIXED)):
        engine.abort(str(i))
        engine.abort(str(i))
    check_idle(engine)
    assert engine.step() == []
    engine.add_request("0", *MIXED[0])


def test_ids_are_unique(make_engine):
    engine = make_engine()
    engine.add_request("a", *MIXED[0])
    with pytest.raises(ParameterError, match="request_id: must not be in use; got 'a'"):
        engine.add_request("a", *MIXED[1])


@pytest.mark.parametrize("seed", range(12))
def test_random_interleavings(make_engine, seed):
    """Requests come, go and are dropped in any order: the rest keep their tokens, and the pool is whole at the end."""
    rng = random.Random(seed)
    alone = make_engine(enable_prefix_caching=False)
    engine = make_engine(
        num_kv_blocks=rng.randrange(13, 40),
        max_num_seqs=rng.randrange(1, 6),
        max_num_batched_tokens=rng.randrange(1, 40),
        enable_prefix_caching=rng.random() < 0.7,
    )
    shared = prompts(9, seed=seed)[0]
    alive, results, asked = [], {}, {}
    for i in range(60):
        action = rng.random()
        if action < 0.25:
            (tail,) = prompts(rng.randrange(1, 25), seed=i + 1000 * seed)
            prompt = (shared if rng.random() < 0.5 else []) + tail
            params = SamplingParams(
                seed=i, max_tokens=rng.randrange(1, 12), n=rng.choice([1, 1, 2]), prompt_logprobs=rng.choice([None, 0])
            )
            alive.append(str(i))
            asked[str(i)] = prompt, params
            engine.add_request(str(i), prompt, params)
        elif action < 0.3 and alive:
            dropped = alive.pop(rng.randrange(len(alive)))
            engine.abort(dropped)
            del asked[dropped]
        else:
            for output in engine.step():
                if output.finished:
                    results[output.request_id] = output
                    alive.remove(output.request_id)
        held = {block for choice in engine._scheduler.running for block in choice.blocks}
        assert engine._cache.num_free + len(held) == engine.config.num_kv_blocks
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                results[output.request_id] = output
    check_idle(engine)
    assert results.keys() == asked.keys()
    for request_id, request in asked.items():
        assert tokens([results[request_id]]) == tokens(run(alone, [request]))
