"""Rows of more than 1,024 tiles, whose line is drawn through the highest of each few, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")
from drawlot.kernels.triton import listing
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import compare, interpreted, params

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

TILES = 1300
"""In places of 2,048, of which a thread has each with that 1,024 further on"""


def draw() -> None:
    """Rows whose best tokens lie anywhere, or share places, and one that has three tokens in few tiles."""
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


def test_long_rows_draw_as_the_reference_does() -> None:
    draw()


def test_a_wrong_line_is_seen() -> None:
    mutant = KernelMutant("sums", listing._thinned, "tl.max(x.reshape", "tl.sum(x.reshape")
    with mutant.planted(), pytest.raises(AssertionError):
        draw()
