"""The tests of this folder kill every wrong verification they are shown, and no right one."""

from collections.abc import Callable
from itertools import product

import pytest

from drawlot import SamplingParams
from tests.verification import mutants
from tests.verification.mutants import Mutant
from tests.verification.replay import replayed
from tests.verification.sequences import Writers
from tests.verification.world import BACKENDS, TOLERANCE, World, of_one_step, world

FILTERED = SamplingParams(temperature=0.7, top_k=2)
PENALISED = SamplingParams(frequency_penalty=1.5, repetition_penalty=1.7)


def ends(drafts: tuple[int, ...]) -> bool:
    return drafts in {(0,), (1, 1)}


def small_worlds() -> list[World]:
    """Few of those of `test_exact`, by what they need least time for."""
    return [
        world("random", 3, 2),
        world("zeros", 3, 2),
        world("random", 3, 3, method="block"),
        world("random", 3, 2, form="point"),
        world("random", 3, 3, form="point", method="block"),
        world("random", 3, 2, form="lse"),
        world("random", 3, 2, form="wider"),
        world("sure", 3, 2, form="sparse"),
        world("random", 3, 2, form="sparse"),
        world("ties", 3, 2, params=SamplingParams(temperature=0)),
        world("random", 4, 2, params=FILTERED),
        world("ties", 4, 2, params=FILTERED),
        world("ties", 4, 2, params=FILTERED, form="point"),
        world("random", 3, 2, params=PENALISED, prompt=(1,)),
        world("random", 3, 3, stops=ends, seed=2),
        world("random", 3, 3, stops=ends, seed=2, method="block"),
        world("random", 3, 2, refused=(1,), seed=2),
        world("random", 3, 2, method="coupled"),
        world("far", 3, 2),
    ]


def law_is_right(backend: str) -> bool:
    try:
        return all(of_one_step(tiny, backend, (0,)) <= TOLERANCE["torch"] for tiny in small_worlds())
    except AssertionError:
        return False


def noise_is_right(backend: str) -> bool:
    for method, form, wide in product(("standard", "block", "coupled", "greedy"), ("dense", "point"), (False, True)):
        params = SamplingParams(temperature=0 if method == "greedy" else 1)
        of = "standard" if method == "greedy" else method
        tiny = world("random", 4, 3, ids=(0, 127, 128, 299), method=of, form=form, params=params)
        drafts = list(product(range(4), repeat=3))[::3]
        args = tiny.captured(backend, (1,), drafts)
        verified = BACKENDS[backend].verify_rows(*args, wide=wide)
        for tokens, sampled in zip(replayed(BACKENDS[backend], args, wide=wide), verified.sampled_token_ids.tolist()):
            if sampled != tokens + [-1] * (4 - len(tokens)):
                return False
    return True


def killed(mutant: Mutant, sees: Callable[[str], bool], backend: str) -> bool:
    with mutant.planted():
        return not sees(backend)


def cases(of_reference: list[Mutant], of_torch: list[Mutant]) -> list[object]:
    each = [("reference", mutant) for mutant in of_reference] + [("torch", mutant) for mutant in of_torch]
    return [pytest.param(backend, mutant, id=f"{backend}: {mutant.name}") for backend, mutant in each]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_right_lives(backend: str) -> None:
    assert law_is_right(backend)
    assert noise_is_right(backend)


@pytest.mark.parametrize(("backend", "mutant"), cases(mutants.SAME_OF_REFERENCE, mutants.SAME_OF_TORCH))
def test_what_is_the_same_lives(backend: str, mutant: Mutant) -> None:
    assert not killed(mutant, law_is_right, backend)


@pytest.mark.parametrize(
    ("backend", "mutant"), cases(mutants.OF_REFERENCE + mutants.OF_BOTH, mutants.OF_TORCH + mutants.OF_BOTH)
)
def test_the_exact_sum_kills_wrong_laws(backend: str, mutant: Mutant) -> None:
    assert killed(mutant, law_is_right, backend)


@pytest.mark.parametrize(("backend", "mutant"), cases(mutants.NOISE_OF_REFERENCE, mutants.NOISE_OF_TORCH))
def test_replaying_the_noise_kills_wrong_draws(backend: str, mutant: Mutant) -> None:
    assert killed(mutant, noise_is_right, backend)


@pytest.fixture(scope="module")
def writers() -> list[Writers]:
    """One that rejects most drafts, and one whose residuals have several tokens."""
    return [
        Writers("torch", 2**13, v=3, length=4, mismatch=3),
        Writers("torch", 2**14, v=4, length=3, mismatch=2),
    ]


@pytest.mark.parametrize("method", ["standard", "block", "coupled"])
def test_sequences_fit(writers: list[Writers], method: str) -> None:
    assert all(each.fit(method, coupled=method == "coupled").ok for each in writers)


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in mutants.REUSED])
def test_sequences_kill_what_reuses_noise(writers: list[Writers], mutant: Mutant) -> None:
    with mutant.planted():
        assert not all(each.fit("block").ok for each in writers)
