"""The law of what is emitted, summed up exactly, is the target's own; what is drawn is drawn by that law."""

from itertools import product

import numpy as np
import pytest
import torch

from drawlot import SamplingParams
from tests.verification.replay import replayed
from tests.verification.world import BACKENDS, KINDS, TOLERANCE, World, distance, of_one_step, of_two_steps, world

LOSSLESS = ("standard", "block", "coupled")
FORMS = ("dense", "wider", "lse", "sparse", "point")
PARAMS = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2, "temperature": 1.5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "all filters": {"top_k": 3, "top_p": 0.9, "min_p": 0.05, "temperature": 0.9},
    "greedy": {"temperature": 0},
    "penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.5, "presence_penalty": -0.8},
    "penalties and top_k": {"frequency_penalty": 1.5, "top_k": 2},
    "bias": {"logit_bias": {0: 2.0, 2: -1.0}},
    "allowed": {"allowed_token_ids": [0, 2]},
}


def tolerance(backend: str, form: str) -> float:
    # A log-sum-exp comes rounded to float32, whoever is given it.
    return TOLERANCE["torch"] if form == "lse" else TOLERANCE[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize("form", FORMS)
def test_one_step(backend: str, method: str, form: str) -> None:
    for kind, context in product(KINDS, ((), (0, 1))):
        tiny = world(kind, 3, 2, method=method, form=form)
        assert of_one_step(tiny, backend, context) <= tolerance(backend, form), (kind, context)
    for k in (1, 3):
        assert of_one_step(world("zeros", 4, k, method=method, form=form), backend) <= tolerance(backend, form), k


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_logits_far_from_zero(backend: str, method: str, form: str) -> None:
    # A log-sum-exp that is given is a float32, and drafters have one of log-weights: near 0.
    assert of_one_step(world("far", 3, 2, method=method, form=form), backend) <= TOLERANCE[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_draft_logits_beside_which_a_sum_is_lost(backend: str, form: str) -> None:
    near = world("random", 3, 2)
    tiny = World(near.target, lambda _: np.full(3, -1e30), 2, (0, 1, 2), form=form)
    assert of_one_step(tiny, backend) <= TOLERANCE[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["standard", "block"])
def test_one_step_of_four_drafts_among_five_tokens(backend: str, method: str) -> None:
    kinds = ("random", "zeros") if backend == "torch" else ("zeros",)
    for kind in kinds:
        assert of_one_step(world(kind, 5, 4, method=method), backend) <= TOLERANCE[backend], kind


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("method", "v", "kind"), [("standard", 3, "random"), ("block", 3, "zeros"), ("block", 4, "ties")]
)
def test_two_steps(backend: str, method: str, v: int, kind: str) -> None:
    assert of_two_steps(world(kind, v, 2, method=method), backend) <= TOLERANCE[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PARAMS)
def test_every_parameter(backend: str, name: str) -> None:
    params = SamplingParams(**PARAMS[name])  # type: ignore[arg-type]
    for method, form in product(LOSSLESS, ("dense", "point")):
        tiny = world("random", 4, 2, seed=1, method=method, form=form, params=params, prompt=(1,))
        assert of_one_step(tiny, backend, (3, 0)) <= TOLERANCE[backend], (method, form)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", LOSSLESS)
def test_ids_on_both_sides_of_tile_borders(backend: str, method: str) -> None:
    ids = (0, 127, 128, 255, 299)
    for kind, form in (("random", "dense"), ("zeros", "sparse"), ("ties", "point")):
        tiny = world(kind, 5, 2, ids=ids, method=method, form=form)
        assert of_one_step(tiny, backend) <= TOLERANCE[backend], (kind, form)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize("form", ["dense", "sparse", "point"])
def test_drafts_that_end_early_and_drafts_that_are_refused(backend: str, method: str, form: str) -> None:
    ends: dict[str, object] = {"stops": lambda drafts: drafts in {(0,), (1, 1)}}
    none: dict[str, object] = {"stops": lambda _: True}
    for extra in (ends, none, {"refused": (1,)}, ends | {"refused": (0,)}):
        tiny = world("random", 3, 3, seed=2, method=method, form=form, **extra)
        assert of_one_step(tiny, backend, (2,)) <= TOLERANCE[backend], extra


@pytest.mark.parametrize("backend", BACKENDS)
def test_synthetic_accepts_at_its_rates_and_is_not_lossless(backend: str) -> None:
    tiny = world("opposite", 3, 2, method="synthetic")
    emitted = tiny.one_step(backend, ())
    # Half of the steps accept the first draft, and the configured rates are 0.5 for both together as well.
    np.testing.assert_allclose([part.sum() for part in emitted], [0.5, 0.0, 0.5], atol=1e-12)
    assert of_one_step(tiny, backend) > 0.05


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", [*LOSSLESS, "synthetic"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_drawn_is_what_the_law_says(backend: str, method: str, form: str) -> None:
    tiny = world("random", 5, 3, ids=(0, 127, 128, 255, 299), method=method, form=form)
    drafts = list(product(range(5), repeat=3))[::4]
    args = tiny.captured(backend, (1,), drafts)
    for wide in (False, True):
        verified = BACKENDS[backend].verify_rows(*args, wide=wide)
        for r, tokens in enumerate(replayed(BACKENDS[backend], args, wide=wide)):
            assert verified.sampled_token_ids[r].tolist() == tokens + [-1] * (4 - len(tokens)), r


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", [*LOSSLESS, "synthetic"])
def test_padding_is_as_though_there_were_fewer_rows(backend: str, method: str) -> None:
    tiny = world("random", 4, 3, method=method)
    drafts = list(product(range(4), repeat=3))
    logits, params, edits, given, _ = tiny.captured(backend, (), drafts)
    for n in range(3):
        padded = given.token_ids.clone()
        padded[:, n] = -1
        long = BACKENDS[backend].verify_rows(logits, params, edits, given._replace(token_ids=padded), None)
        rows = (torch.arange(len(drafts)).unsqueeze(1) * 4 + torch.arange(n + 1)).flatten()
        columns = max(1, n)
        fewer = given._replace(
            token_ids=padded[:, :columns],
            cu_rows=torch.arange(len(drafts) + 1, dtype=torch.int32) * (n + 1),
            rates=given.rates[:columns],
        )
        short = BACKENDS[backend].verify_rows(logits[rows], params.pick(rows), edits, fewer, None)
        assert torch.equal(long.sampled_token_ids[:, : n + 1], short.sampled_token_ids[:, : n + 1])
        assert (long.sampled_token_ids[:, n + 1 :] == -1).all()


def test_the_sum_sees_a_wrong_law() -> None:
    tiny: World = world("random", 3, 2)
    other = world("random", 3, 2, seed=1)
    emitted = [((), part) for part in tiny.one_step("reference", ())]
    assert distance(other.completed(emitted, (), 3), other.joint((), 3)) > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_many_drafts_are_accepted_as_can_be(backend: str) -> None:
    def mean_accepted(emitted: list[np.ndarray]) -> float:
        return float(sum(m * part.sum() for m, part in enumerate(emitted)))

    for kind in ("random", "ties"):
        alone = world(kind, 4, 1)
        rate = np.minimum(alone.p(()), alone.q(())).sum()
        assert abs(mean_accepted(alone.one_step(backend, ())) - rate) <= TOLERANCE[backend]
        # A block accepts no fewer than token by token (Sun et al. 2024, theorem 2), here more.
        of_block, of_tokens = (
            mean_accepted(world(kind, 3, 3, method=method).one_step(backend, ())) for method in ("block", "standard")
        )
        assert of_block > of_tokens + 1e-3, kind
