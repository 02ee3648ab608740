"""The Triton backend, in Triton's interpreter, draws the reference's tokens. On a GPU: `benchmarks.gpu_proof`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from drawlot import SamplingParams, sample
from drawlot.kernels import reference, registry
from drawlot.kernels.inputs import SampledRows
from tests.cases import MODES, random_batch
from tests.test_backends import NEAR_TIE, draw, same_logprobs

triton = pytest.importorskip("triton")
interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")
pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

# The interpreter takes some 10 ms a row, most of it for what is launched once.
ROWS = {1: 16, 3: 16, 127: 32, 129: 48, 1000: 48, 1280: 32, 4097: 16}


@pytest.fixture
def margins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The margins of every call of the reference."""
    seen: list[Tensor] = []
    sample_rows = reference.sample_rows

    def spy(*args: object, **kwargs: object) -> SampledRows:
        rows = sample_rows(*args, **kwargs)  # type: ignore[arg-type]
        assert rows.margin is not None
        seen.append(rows.margin)
        return rows

    monkeypatch.setattr(reference, "sample_rows", spy)
    registry._load.cache_clear()
    yield seen
    registry._load.cache_clear()


@pytest.mark.parametrize("vocab_size", ROWS)
def test_random_rows(vocab_size: int, margins: list[Tensor]) -> None:
    rng = np.random.default_rng([30_000, vocab_size])
    compared = 0
    while compared < ROWS[vocab_size]:
        batch = random_batch(rng, vocab_size, 8)
        # The interpreter's bfloat16 loses subnormal numbers.
        if batch.logits.dtype == torch.bfloat16 and bool((batch.logits.float().abs() < 1e-37).any()):
            continue
        compared += len(batch.logits)
        exact, fast = draw(batch, "reference"), draw(batch, "triton")
        differs = (fast.token_ids != exact.token_ids) | (fast.status != exact.status)
        for i in differs.nonzero().flatten().tolist():
            case = f"V={vocab_size} {batch.note} margin={margins[-1][i]:.3g} {batch.params[i]}"
            assert margins[-1][i] < NEAR_TIE, case
        if exact.logprobs is not None and fast.logprobs is not None:
            same_logprobs(fast.logprobs, exact.logprobs, ~differs & (margins[-1] >= NEAR_TIE))


@pytest.mark.parametrize("mode", MODES)
def test_the_only_column_of_rows(mode: str, margins: list[Tensor]) -> None:
    """Where nobody asks for more than the drawn token's logprob, the launches of the draw fill it in."""
    rng = np.random.default_rng([31_000, MODES.index(mode)])
    for vocab_size in (129, 1000):
        batch = random_batch(rng, vocab_size, 12)
        params = [
            replace(each, logprobs=(0, None)[i % 4 == 3], logprob_token_ids=None) for i, each in enumerate(batch.params)
        ]
        batch = replace(batch, params=params, mode=mode, logits=batch.logits.float())
        exact, fast = draw(batch, "reference"), draw(batch, "triton")
        assert exact.logprobs is not None
        assert fast.logprobs is not None
        assert fast.logprobs.logprobs.shape == (12, 1)
        same = (fast.token_ids == exact.token_ids) & (fast.status == exact.status)
        assert (same | (margins[-1] < NEAR_TIE)).all()
        same_logprobs(fast.logprobs, exact.logprobs, same & (margins[-1] >= NEAR_TIE))


def test_what_reaches_top_p_exactly_ends_the_list() -> None:
    logits = torch.full((12, 300), -20.0)
    logits[:, [70, 290]] = 1.0
    drawn = sample(logits, SamplingParams(seed=3, top_k=2, top_p=0.5), positions=torch.arange(12), backend="triton")
    assert (drawn.token_ids == 70).all()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("ids", "top_k"),
    [
        # Of four neighbours, of one tile, of two, of 20 tiles, of more tiles than a list has room for.
        (range(501, 504), 3),
        (range(900, 1020, 13), 6),
        ([389, 454, 5130], 2),
        ([128 * t + i for t in range(30, 50) for i in (t, t + 60)], 40),
        (range(77, 18_000, 128), 130),
        (range(77, 18_000, 128), 60),
    ],
)
def test_the_best_tokens_wherever_they_lie(ids: Sequence[int], top_k: int, *, tied: bool) -> None:
    torch.manual_seed(6)
    logits = torch.randn(4, 18_000)
    logits[:, list(ids)] = 10 + (0 if tied else torch.rand(4, len(ids)))
    asked = replace(SamplingParams(seed=1, top_k=top_k, logprobs=20), temperature=1.3)
    exact, fast = (sample(logits, asked, positions=torch.arange(4), backend=name) for name in ("reference", "triton"))
    assert torch.equal(fast.token_ids, exact.token_ids)
    assert exact.logprobs is not None
    assert fast.logprobs is not None
    assert torch.equal(fast.logprobs.logprob_token_ids, exact.logprobs.logprob_token_ids)
    assert torch.equal(fast.logprobs.selected_token_ranks, exact.logprobs.selected_token_ranks)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1, top_k=200),
        SamplingParams(seed=1, top_k=300, top_p=0.9),
        SamplingParams(seed=1, top_p=0.95, temperature=1.5),
        SamplingParams(seed=1, min_p=1e-3, temperature=3.0),
        SamplingParams(seed=1, min_p=1e-4, top_p=0.8, temperature=3.0),
        SamplingParams(seed=1, top_k=2500),
    ],
)
@pytest.mark.parametrize("kind", ["normal", "constant", "rounded"])
def test_rows_that_no_short_list_holds(params: SamplingParams, kind: str) -> None:
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(5))
    logits = {"normal": logits, "constant": torch.zeros(3, 3000), "rounded": logits.round()}[kind]
    positions = torch.arange(3)
    exact = sample(logits, params, positions=positions, backend="reference")
    fast = sample(logits, params, positions=positions, backend="triton")
    assert torch.equal(fast.token_ids, exact.token_ids)


def test_the_best_tokens_of_a_list_that_overflows_are_not_those_that_it_holds() -> None:
    # Eight tokens in each of 47 tiles, better from tile to tile: the lines of top_k and of the top tokens are reached
    # by more than the 128 that a list holds, and the first 128 are the worst.
    logits = torch.full((6, 70 * 128), -9.0)
    logits[1::2, : 47 * 128].unflatten(1, (47, 128))[:, :, 56:64] = (torch.arange(47.0) / 64).view(47, 1)
    logits[0::2] = torch.randn(3, 70 * 128, generator=torch.Generator().manual_seed(6))
    params = SamplingParams(seed=2, top_k=40, logprobs=20)
    exact = sample(logits, params, positions=torch.arange(6), backend="reference")
    fast = sample(logits, params, positions=torch.arange(6), backend="triton")
    assert torch.equal(fast.token_ids, exact.token_ids)
    assert fast.logprobs is not None
    assert exact.logprobs is not None
    assert torch.equal(fast.logprobs.logprob_token_ids, exact.logprobs.logprob_token_ids)
