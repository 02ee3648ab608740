"""Rows of more than 1,024 tiles, in Triton's interpreter.

Their line is drawn through the highest of each few, and the noise of their tiles is made in several blocks.
"""

import pytest
import torch

pytest.importorskip("triton")
from drawlot.kernels.triton import listing, race
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import compare, interpreted, params

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

TILES = 1300
"""In places of 2,048, of which a thread has each with that 1,024 further on"""


def draw(position: int) -> None:
    """Rows whose best tokens lie anywhere, or share places, and one that has three tokens in few tiles.

    position: of the last ones, for whose noise is not taken what others have left in memory.
    """
    x = torch.randn(3, TILES * 128, generator=torch.Generator().manual_seed(3)) * 3
    x[1, : 276 * 128] += 6
    x[1, 1024 * 128 :] += 6
    few = torch.arange(0, TILES, 16)
    x[2] = torch.where(
        torch.isin(torch.arange(x.shape[1]) // 128, few) & (torch.arange(x.shape[1]) % 128 < 3), x[2], -99
    )
    rows = params(3, top_k=50, top_p=0.9)
    compare(x, rows._replace(temperature=torch.tensor([0.8, 1.0, 0.0], dtype=torch.float64)))
    compare(x, params(3))
    compare(x[1:2].repeat(6, 1), params(6)._replace(position=torch.full((6,), position)))


def test_long_rows_draw_as_the_reference_does() -> None:
    draw(5)


WRONG = [
    KernelMutant("sums", listing._thinned, "tl.max(x.reshape", "tl.sum(x.reshape"),
    KernelMutant("noise of the first tiles alone", race.store_noises, "while first < num_tiles", "while first < 0"),
    KernelMutant("the same noise again", race.store_noises, "gumbel_of_range(first,", "gumbel_of_range(0,"),
]


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_wrong_kernels_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        draw(6 + WRONG.index(mutant))
