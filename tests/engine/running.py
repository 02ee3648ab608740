"""The few ways in which tests run an engine."""

import random
from collections.abc import Iterable, Sequence

from drawlot.engine.engine import Engine
from drawlot.engine.outputs import RequestOutput
from drawlot.params import SamplingParams

VOCAB = 96


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    """Random token ids."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def greedy(max_tokens: int = 12, **kwargs: object) -> SamplingParams:
    """Draws without noise."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, **kwargs)


def run(
    engine: Engine, requests: Iterable[tuple[Sequence[int] | str, SamplingParams]], max_steps: int = 1000
) -> list[RequestOutput]:
    """The last output of each request, in order; checks that everything was given back."""
    ids = []
    for i, (prompt, params) in enumerate(requests):
        ids.append(f"request-{i}")
        engine.add_request(ids[-1], prompt, params)
    finished = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests():
            break
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
    check_idle(engine)
    return [finished[request_id] for request_id in ids]


def tokens(outputs: Iterable[RequestOutput]) -> list[list[list[int]]]:
    """Token ids of every choice of every request."""
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


def preempt(engine: Engine) -> None:
    """Take everything from the latest running choice, as if blocks had run out."""
    scheduler = engine._scheduler
    if scheduler.running:
        latest = scheduler.running.pop()
        engine._runner.remove(latest.row)
        scheduler._leave(latest)
        scheduler.waiting.appendleft(latest)


def check_idle(engine: Engine) -> None:
    """Nothing is held: blocks, rows of the tables, requests."""
    assert not engine.has_unfinished_requests()
    assert engine._cache.num_free == engine.config.num_kv_blocks
    assert not engine._cache.tables.any()
    scheduler = engine._scheduler
    assert not scheduler.running
    assert not scheduler.waiting
    assert sorted(scheduler._free_rows) == list(range(engine.config.max_num_seqs))
