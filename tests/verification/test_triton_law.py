"""The law of what the Triton backend emits, summed up exactly from its own thresholds and weights, is the target's.

On a GPU it is the law of its compiled kernels, otherwise of the same kernels in Triton's interpreter, for which the
larger worlds take minutes.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from types import ModuleType
from unittest import mock

import pytest
import torch

from drawlot import RejectionSampler, SamplingParams

if find_spec("triton") is None:
    pytest.skip("for Triton", allow_module_level=True)

from tests.kernel_mutant import KernelMutant
from tests.verification import kernel_mutants, triton_law
from tests.verification import world as worlds
from tests.verification.test_exact import FORMS, PARAMS
from tests.verification.world import KINDS, World, of_one_step, of_two_steps, world

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TOLERANCE = 1e-6
METHODS = pytest.mark.parametrize("method", ["standard", "block"])
TILE_BORDERS = (0, 127, 128, 255, 299)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="hours in Triton's interpreter")


@pytest.fixture(scope="module")
def law() -> Iterator[ModuleType]:
    if not torch.cuda.is_available():
        yield triton_law
        return
    from tests.verification import compiled_law

    with compiled_law.asked():
        yield compiled_law


@pytest.fixture(autouse=True)
def _in_worlds(law: ModuleType) -> Iterator[None]:
    def captured(
        self: World, backend: str, context: tuple[int, ...], drafts: list[tuple[int, ...]]
    ) -> tuple[tuple[RejectionSampler, list[object]]]:
        return (self.verifier(backend, drafts, context),)

    with (
        mock.patch.dict(worlds.BACKENDS, triton=law),
        mock.patch.object(worlds, "tossed", law.tossed),
        mock.patch.object(World, "captured", captured),
    ):
        yield


def distance(tiny: World, context: tuple[int, ...] = ()) -> float:
    tiny.device = DEVICE
    return of_one_step(tiny, "triton", context)


def distance_of_two_steps(tiny: World) -> float:
    tiny.device = DEVICE
    return of_two_steps(tiny, "triton")


@METHODS
@pytest.mark.parametrize(
    ("kind", "form"),
    [("few", "dense"), ("zeros", "lse"), ("few", "point"), ("opposite", "sparse"), ("disjoint", "wider")],
)
def test_one_step(method: str, kind: str, form: str) -> None:
    assert distance(world(kind, 3, 2, method=method, form=form), (0,)) <= TOLERANCE


@METHODS
@pytest.mark.parametrize(
    ("kind", "form"), [("sure", "dense"), ("sure", "point"), pytest.param("few", "lse", marks=pytest.mark.minutes)]
)
def test_four_drafts_among_five_tokens(method: str, kind: str, form: str) -> None:
    assert distance(world(kind, 5, 4, method=method, form=form)) <= TOLERANCE


@METHODS
@pytest.mark.parametrize(("v", "k"), [(3, 1), pytest.param(4, 2, marks=pytest.mark.minutes)])
def test_filters_and_penalties(method: str, v: int, k: int) -> None:
    params = SamplingParams(temperature=0.8, top_k=v - 1, top_p=0.9, frequency_penalty=0.7)
    tiny = world("random", v, k, seed=1, method=method, params=params, prompt=(1,))
    assert distance(tiny, (2, 0)) <= TOLERANCE


@METHODS
def test_drafts_that_end_early_and_drafts_that_are_refused(method: str) -> None:
    tiny = world("few", 3, 2, method=method, stops=lambda drafts: drafts == (0,), refused=(1,))
    assert distance(tiny, (2,)) <= TOLERANCE


@METHODS
@pytest.mark.parametrize(("kind", "v", "k"), [("sure", 4, 2), pytest.param("random", 2, 2, marks=pytest.mark.minutes)])
def test_two_steps(method: str, kind: str, v: int, k: int) -> None:
    assert distance_of_two_steps(world(kind, v, k, method=method)) <= TOLERANCE


@pytest.mark.minutes
@METHODS
def test_three_drafts(method: str) -> None:
    assert distance(world("zeros", 3, 3, method=method)) <= TOLERANCE


@on_a_gpu
@METHODS
@pytest.mark.parametrize("form", FORMS)
def test_one_step_of_every_kind(method: str, form: str) -> None:
    for kind, context, wide in product(KINDS, ((), (0, 1)), (False, True)):
        tiny = world(kind, 3, 2, method=method, form=form, wide=wide)
        assert distance(tiny, context) <= TOLERANCE, (kind, context, wide)
    for kind, k in product(("random", "zeros", "ties"), (2, 4)):
        assert distance(world(kind, 5, k, method=method, form=form)) <= TOLERANCE, (kind, k)


@on_a_gpu
@METHODS
@pytest.mark.parametrize("form", ["dense", "sparse", "point"])
def test_two_steps_among_four_tokens(method: str, form: str) -> None:
    for kind in ("random", "zeros", "ties"):
        assert distance_of_two_steps(world(kind, 4, 2, method=method, form=form)) <= TOLERANCE, kind


@on_a_gpu
@METHODS
@pytest.mark.parametrize("form", ["dense", "lse", "sparse", "point"])
def test_ids_on_both_sides_of_tile_borders(method: str, form: str) -> None:
    filters = SamplingParams(top_k=4, top_p=0.95, temperature=0.9)
    for kind, params in product(("random", "zeros", "ties"), (SamplingParams(), filters)):
        tiny = world(kind, 5, 2, ids=TILE_BORDERS, method=method, form=form, params=params)
        assert distance(tiny) <= TOLERANCE, (kind, params)


@on_a_gpu
@METHODS
@pytest.mark.parametrize("name", PARAMS)
def test_every_parameter(method: str, name: str) -> None:
    params = SamplingParams(**PARAMS[name])  # type: ignore[arg-type]
    for form in ("dense", "point"):
        tiny = world("random", 4, 2, seed=1, method=method, form=form, params=params, prompt=(1,))
        assert distance(tiny, (3, 0)) <= TOLERANCE, form


@on_a_gpu
@METHODS
@pytest.mark.parametrize("form", ["dense", "sparse", "point"])
def test_all_ways_in_which_drafts_end(method: str, form: str) -> None:
    ends: dict[str, object] = {"stops": lambda drafts: drafts in {(0,), (1, 1)}}
    none: dict[str, object] = {"stops": lambda _: True}
    for extra in (ends, none, {"refused": (1,)}, ends | {"refused": (0,)}):
        tiny = world("random", 3, 3, seed=2, method=method, form=form, **extra)
        assert distance(tiny, (2,)) <= TOLERANCE, extra


def of_mutants(name: str) -> World:
    """As small as shows the error: in the interpreter a row takes a tenth of a second."""
    early = {"stops": lambda drafts: drafts == (0,)}
    made = {
        "standard": world("random", 3, 1),
        "zeros": world("zeros", 3, 1, seed=3),
        "two drafts": world("few", 3, 2),
        "point": world("random", 3, 1, form="point"),
        "sparse": world("random", 3, 1, form="sparse"),
        "log-sum-exp": world("few", 3, 2, form="lse"),
        "warm": world("random", 3, 1, params=SamplingParams(temperature=0.6)),
        "filtered": world("random", 4, 1, params=SamplingParams(temperature=0.7, top_k=3)),
        "filtered point": world("ties", 4, 1, params=SamplingParams(temperature=0.7, top_k=2), form="point"),
        "penalised": world("random", 3, 1, params=SamplingParams(frequency_penalty=1.5, repetition_penalty=1.7)),
        "refused": world("random", 3, 1, refused=(1,), seed=2),
        "early end": world("random", 2, 2, **early),
        "block": world("sure", 3, 2, method="block", form="lse"),
        "block of two": world("random", 2, 2, method="block"),
        "block, few": world("few", 3, 2, method="block", form="lse"),
        "block point": world("sure", 3, 2, method="block", form="point"),
    }
    return made[name]


def is_seen(mutant: KernelMutant, law: ModuleType) -> bool:
    with mutant.planted():
        if DEVICE == "cuda":
            law.forget_compiled()
        try:
            return distance(of_mutants(mutant.world), (0,)) > TOLERANCE
        except AssertionError:
            return True
        finally:
            if DEVICE == "cuda":
                law.forget_compiled()


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in kernel_mutants.ALL])
def test_wrong_kernels_are_seen(mutant: KernelMutant, law: ModuleType) -> None:
    assert is_seen(mutant, law)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's thresholds are found by trying, whatever they are")
def test_a_coin_that_is_its_threshold_is_not_below_it(law: ModuleType) -> None:
    assert is_seen(kernel_mutants.INCLUSIVE, law)


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in kernel_mutants.THE_SAME])
def test_the_same_in_other_words_is_not_seen(mutant: KernelMutant, law: ModuleType) -> None:
    assert not is_seen(mutant, law)


@pytest.mark.parametrize("name", sorted({mutant.world for mutant in kernel_mutants.ALL}))
def test_right_kernels_are_not_seen(name: str) -> None:
    assert distance(of_mutants(name), (0,)) <= TOLERANCE
