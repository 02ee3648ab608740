"""The law of what the Triton backend emits, summed up exactly from its own thresholds and weights, is the target's."""

from collections.abc import Iterator
from importlib.util import find_spec
from unittest import mock

import pytest
import torch

from drawlot import RejectionSampler, SamplingParams

if find_spec("triton") is None or torch.cuda.is_available():
    pytest.skip("for Triton's interpreter", allow_module_level=True)

from drawlot.kernels.triton.verification import draw, laws
from tests.verification import triton_law
from tests.verification import world as worlds
from tests.verification.world import World, of_one_step, of_two_steps, world

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def _in_worlds() -> Iterator[None]:
    def captured(
        self: World, backend: str, context: tuple[int, ...], drafts: list[tuple[int, ...]]
    ) -> tuple[tuple[RejectionSampler, list[object]]]:
        return (self.verifier(backend, drafts, context),)

    with (
        mock.patch.dict(worlds.BACKENDS, triton=triton_law),
        mock.patch.object(worlds, "tossed", triton_law.tossed),
        mock.patch.object(World, "captured", captured),
    ):
        yield


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [("random", "dense"), ("zeros", "lse"), ("ties", "point"), ("opposite", "sparse"), ("disjoint", "wider")],
)
def test_one_step(method: str, kind: str, form: str) -> None:
    assert of_one_step(world(kind, 3, 2, method=method, form=form), "triton", (0,)) <= TOLERANCE


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize(("v", "k"), [(3, 1), pytest.param(4, 2, marks=pytest.mark.minutes)])
def test_filters_and_penalties(method: str, v: int, k: int) -> None:
    params = SamplingParams(temperature=0.8, top_k=v - 1, top_p=0.9, frequency_penalty=0.7)
    tiny = world("random", v, k, seed=1, method=method, params=params, prompt=(1,))
    assert of_one_step(tiny, "triton", (2, 0)) <= TOLERANCE


@pytest.mark.parametrize("method", ["standard", "block"])
def test_drafts_that_end_early_and_drafts_that_are_refused(method: str) -> None:
    tiny = world("random", 3, 2, seed=2, method=method, stops=lambda drafts: drafts == (0,), refused=(1,))
    assert of_one_step(tiny, "triton", (2,)) <= TOLERANCE


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("k", [1, pytest.param(2, marks=pytest.mark.minutes)])
def test_two_steps(method: str, k: int) -> None:
    assert of_two_steps(world("random", 2, k, method=method), "triton") <= TOLERANCE


@pytest.mark.minutes
@pytest.mark.parametrize("method", ["standard", "block"])
def test_three_drafts(method: str) -> None:
    assert of_one_step(world("zeros", 3, 3, method=method), "triton") <= TOLERANCE


def inclusive(*given: object) -> object:
    """Compares with coins that are a little too low: what is equal to a threshold is below it."""
    *others, coin = given
    coin.handle.data = coin.handle.data * (1 - 2.0**-40)  # type: ignore[attr-defined]
    return ACCEPTS(*others, coin)


def without_q(*given: object) -> object:
    """Leaves what p is, not what q leaves of it."""
    p, _ = WEIGHTS_OF(*given)
    return p, p


ACCEPTS, WEIGHTS_OF = laws.accepts, draw.weights_of


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [(laws, "accepts", inclusive), (draw, "weights_of", without_q)],
    ids=["inclusive comparison", "residual without q"],
)
def test_planted_errors_are_seen(place: object, name: str, mutant: object) -> None:
    with mock.patch.object(place, name, mutant):
        assert of_one_step(world("random", 3, 1), "triton") > 1e-3
