"""What the scan stores of tiles, in Triton's interpreter."""

import pytest
import torch

from drawlot.kernels.inputs import Edits

pytest.importorskip("triton")

from drawlot.kernels.triton import sample, scan
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import interpreted, params, wanted_of_all, workspaces_made

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def check_tiles(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    """Of tempered rows, whose raw tiles are apart."""
    works, n = workspaces_made(monkeypatch), 2
    x = torch.randn(n, vocab_size, generator=torch.Generator().manual_seed(6))
    sample.sample_rows(x, params(n, temperature=0.7), Edits(), wanted_of_all(n, "raw_logprobs"))
    tiles = works[0].tiles
    assert tiles.num == 16
    padded = torch.nn.functional.pad(x, (0, 16 * 128 - vocab_size), value=-torch.inf).view(n, 16, 128)
    maxima = padded.amax(2)
    exponents = torch.where(padded > -torch.inf, padded - maxima.unsqueeze(2), -torch.inf)
    for scale, stored_maxima, stored_sums in (
        (1 / 0.7, tiles.maxima, tiles.sums),
        (1.0, tiles.raw_maxima, tiles.raw_sums),
    ):
        assert stored_maxima is not None
        assert stored_sums is not None
        assert stored_maxima[:, :16].equal(maxima)
        torch.testing.assert_close(stored_sums[:, :16], (exponents * scale).exp().sum(2), rtol=1e-5, atol=0)
    best = padded.view(n, 16, 32, 4).amax(3)
    groups, others = tiles.best_groups[:, :16] & 31, tiles.best_groups[:, :16] | 31
    exists = maxima > -torch.inf
    assert groups[exists].equal(best.argmax(2)[exists].int())
    bits = best.topk(2).values[..., 1].contiguous().view(torch.int32)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    assert bool(((others >= order) & (others - order < 32)).all())


@pytest.mark.parametrize("vocab_size", [1280, 1290])
def test_tiles_are_those_of_the_tokens(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_tiles(monkeypatch, vocab_size)


@pytest.mark.parametrize(
    "mutant",
    [
        KernelMutant("padding", scan._put_tiles, "tile < rows.num_tiles", "tile >= 0"),
        KernelMutant("raw padding", scan._put_raw_tiles, "tile < rows.num_tiles", "tile >= 0"),
        KernelMutant(
            "group", scan._best_group_of_slices, "(tl.arange(0, THREADS) * SIDE)", "(tl.arange(0, THREADS) * 2)"
        ),
        KernelMutant(
            "other slices", scan._best_group_of_slices, "two_highest(high, low, 2)", "two_highest(high, high, 2)"
        ),
    ],
    ids=lambda mutant: mutant.name,
)
def test_wrong_tiles_are_seen(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        check_tiles(monkeypatch, 1280)
