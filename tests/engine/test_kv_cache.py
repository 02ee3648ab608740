"""The pool's bookkeeping alone."""

import pytest

from drawlot.engine.kv_cache import NULL_BLOCK, KVCache
from drawlot.engine.request import Choice, Request
from drawlot.params import SamplingParams


@pytest.fixture
def cache():
    return KVCache(num_blocks=6, block_size=2, max_num_seqs=3, max_model_len=12, prefix_caching=True)


def choice(row: int, token_ids: list[int]) -> Choice:
    request = Request(
        request_id="r", prompt=None, prompt_token_ids=token_ids, params=SamplingParams(seed=0), max_tokens=4
    )
    return Choice(request=request, index=0, token_ids=token_ids, row=row, detokenizer=None)


def compute(cache: KVCache, one: Choice, num_tokens: int) -> None:
    assert cache.grow(one, num_tokens)
    one.num_computed = num_tokens
    cache.remember(one)


def test_grow_takes_what_is_missing_or_nothing(cache):
    a, b = choice(0, [1] * 9), choice(1, [2] * 9)
    assert cache.grow(a, 5)
    assert (len(a.blocks), cache.num_free) == (3, 3)
    assert cache.grow(a, 6)
    assert len(a.blocks) == 3
    assert not cache.grow(b, 7)
    assert (b.blocks, cache.num_free) == ([], 3)
    assert cache.tables[0, :3].tolist() == a.blocks
    assert not set(a.blocks) & {NULL_BLOCK}


def test_prefix_is_shared_and_the_last_token_is_left(cache):
    a, b, other = choice(0, [1, 2, 3, 4]), choice(1, [1, 2, 3, 4]), choice(2, [9, 2, 3, 4])
    compute(cache, a, 4)
    cache.reuse_prefix(b)
    assert (b.blocks, b.num_computed) == (a.blocks[:1], 2)
    cache.reuse_prefix(other)
    assert other.blocks == []
    assert len(cache.release(a)) == 1
    assert cache.num_free == 5
    cache.release(b)
    assert cache.num_free == 6


def test_released_prefixes_live_until_they_are_needed(cache):
    a = choice(0, [1, 2, 3, 4, 5])
    compute(cache, a, 5)
    cache.release(a)
    b = choice(0, [7] * 9)
    # Three blocks never held a prefix and one was only half full: they go first.
    assert cache.grow(b, 8)
    again = choice(1, [1, 2, 3, 4, 5])
    cache.reuse_prefix(again)
    assert again.num_computed == 4
    cache.release(again)
    # Then the end of the prefix, before its beginning.
    assert cache.grow(b, 10)
    cache.reuse_prefix(again)
    assert again.num_computed == 2


def test_discarded_blocks_are_forgotten(cache):
    a, b = choice(0, [1, 2, 3]), choice(1, [1, 2, 3])
    compute(cache, a, 3)
    blocks = set(a.blocks)
    assert set(cache.release(a, discard=True)) == blocks
    cache.reuse_prefix(b)
    assert b.blocks == []


def test_without_prefix_caching():
    cache = KVCache(num_blocks=4, block_size=2, max_num_seqs=2, max_model_len=8, prefix_caching=False)
    a, b = choice(0, [1, 2, 3]), choice(1, [1, 2, 3])
    compute(cache, a, 3)
    cache.reuse_prefix(b)
    assert b.blocks == []
