"""What the scan stores of tiles, in Triton's interpreter."""

import pytest
import torch

from drawlot.kernels.inputs import Edits

pytest.importorskip("triton")
import triton
import triton.language as tl

from drawlot.kernels.triton import cut_race, sample, scan, tile_summary
from drawlot.kernels.triton.workspace import rows_of
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
        KernelMutant("padding", scan._put_found, "tile < rows.num_tiles", "tile >= 0"),
        KernelMutant("raw padding", scan._put_raw_tiles, "tile < rows.num_tiles", "tile >= 0"),
        KernelMutant(
            "group", tile_summary._best_group_of_slices, "(tl.arange(0, THREADS) * SIDE)", "(tl.arange(0, THREADS) * 2)"
        ),
        KernelMutant(
            "other slices",
            tile_summary._best_group_of_slices,
            "two_highest(high, low, 2)",
            "two_highest(high, high, 2)",
        ),
    ],
    ids=lambda mutant: mutant.name,
)
def test_wrong_tiles_are_seen(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        check_tiles(monkeypatch, 1280)


@triton.jit
def sums_kernel(values, scales, found, M: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(values + (row * M + tl.arange(0, M))[:, None] * 128 + tl.arange(0, 128)[None, :])
    sums = tile_summary.tile_sums(x, tl.max(x, 1), tl.load(scales + row))
    tl.store(found + row * M + tl.arange(0, M), sums)


def check_sums() -> None:
    """Of tiles of all sizes of values, which an offset that is rounded must not move, at all scales."""
    generator = torch.Generator().manual_seed(8)
    sizes = torch.tensor([0.0, 1e-40, 1e-6, 1.0, 300.0, 1e5, 1e7, 3e8, 1e9, 3e12, 1e30, 3.4e38])
    # Neighbours of one value, as near as float32 has them, of either sign.
    steps = torch.randint(-4, 5, (2 * len(sizes), 128), generator=generator, dtype=torch.int32)
    steps[:, 0] = 4
    top = torch.cat([sizes, -sizes])[:, None].expand(-1, 128).contiguous()
    near = (top.view(torch.int32) + steps).view(torch.float32)
    x = torch.cat([torch.where(near.isfinite(), near, top), torch.randn(8, 128, generator=generator) * 20])
    x[:, 100:] = -torch.inf
    x[-1], x[-2, 1:] = -torch.inf, -torch.inf
    scales = torch.tensor([1.0, 1.25, 0.37, 2.0**-126, 2.0**20, 2.0**126])
    tiles = x.expand(len(scales), -1, -1).contiguous()
    found = torch.zeros(len(scales), len(x))
    sums_kernel[(len(scales),)](tiles, scales, found, len(x))
    exponents = torch.where(tiles > -torch.inf, tiles.double() - tiles.double().amax(2, keepdim=True), -torch.inf)
    exact = torch.where(exponents > -torch.inf, exponents * scales.double()[:, None, None], -torch.inf).exp().sum(2)
    torch.testing.assert_close(found.double(), exact, rtol=4e-6, atol=0)
    # Not nearly: their logprobs are 0, and no row has a mass where nothing is.
    assert found[:, -2:].tolist() == [[1.0, 0.0]] * len(scales)
    bad = torch.randn(2, 128, generator=generator)
    bad[0, 5], bad[1, 7] = torch.nan, torch.inf
    sums_kernel[(1,)](bad, scales, found, 2)
    assert bool(found[0, :2].isnan().all())


def test_sums_of_tiles_are_exact_for_all_sizes_of_values() -> None:
    check_sums()


@pytest.mark.parametrize(
    "mutant",
    [
        KernelMutant("rounded offset", tile_summary.tile_sums, "tl.exp2(rest * -1.0)", "1.0"),
        KernelMutant("nearly 1", tile_summary.tile_sums, "1.0 + (tl.sum(mass, 1) - unit)", "tl.sum(mass, 1)"),
        KernelMutant("infinite offset", tile_summary._fused_exponent, "0x7F800000, 30 << 23", "0, 30 << 23"),
        KernelMutant("infinite slope", tile_summary._fused_exponent, "30 << 23", "20 << 23"),
        KernelMutant("slope too low", tile_summary._fused_exponent, "29 << 23", "9 << 23"),
    ],
    ids=lambda mutant: mutant.name,
)
def test_wrong_sums_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        check_sums()


@triton.jit
def bounds_kernel(maxima, raw_sums, found, M: tl.constexpr):
    tile = tl.arange(0, M)
    tl.store(found + tile, scan._bounds_of_sums(tl.load(maxima + tile), tl.load(raw_sums + tile)))


def check_bounds() -> None:
    inf, nan = torch.inf, torch.nan
    found = torch.zeros(8)
    maxima, raw_sums = torch.tensor([3, -inf, inf, -inf, 2, -inf, 0, 1]), torch.tensor([5, 0, 1, nan, nan, 7, 128, 1.0])
    bounds_kernel[(1,)](maxima, raw_sums, found, 8)
    torch.testing.assert_close(found, torch.tensor([128, 0, nan, nan, nan, 0, 128, 128.0]), equal_nan=True)


def test_bounds_of_sums_say_which_tiles_are_bad_and_empty() -> None:
    check_bounds()


@pytest.mark.parametrize(
    "mutant",
    [
        KernelMutant("what penalties make infinite", scan._bounds_of_sums, 'float("nan")', "1.0"),
        KernelMutant("bad raw values", scan._bounds_of_sums, "tl.fma(raw_sums, 0.0, bounds)", "bounds"),
        KernelMutant("empty tiles", scan._bounds_of_sums, "0.0, 128.0", "128.0, 128.0"),
    ],
    ids=lambda mutant: mutant.name,
)
def test_wrong_bounds_of_sums_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        check_bounds()


@triton.jit
def kept_kernel(rows, found, cut_value, cut_id, M: tl.constexpr):
    tile = tl.arange(0, M)
    maxima, sums = cut_race.kept_tiles(rows, tl.zeros([], tl.int64), tile, tile >= 0, cut_value, cut_id, 1.25)
    tl.store(found + tile, maxima)
    tl.store(found + M + tile, sums)


def check_kept() -> None:
    """The cut lies in a tie, of which it keeps some tiles; others have all, or nothing, above it."""
    x = (torch.randn(32, 128, generator=torch.Generator().manual_seed(9)) * 7).round(decimals=1)
    x += 20 * torch.randn(32, 1, generator=torch.Generator().manual_seed(10)) - 15
    cut, cut_id = 9.75, 128 * 20 + 3
    x[:, 7] = torch.where(torch.arange(32) % 3 == 0, cut, x[:, 7])
    ids = torch.arange(x.numel()).view(32, 128)
    kept = torch.where((x > cut) | ((x == cut) & (ids <= cut_id)), x, -torch.inf)
    found, maxima = torch.zeros(2, 32), kept.amax(1)
    kept_kernel[(1,)](rows_of(x.view(1, -1), Edits()), found, cut, cut_id, 32)
    is_kept = maxima > -torch.inf
    assert 5 < int(is_kept.sum()) < 27
    # Not nearly 0: such a tile might be drawn.
    assert found[1][~is_kept].tolist() == [0.0] * int((~is_kept).sum())
    assert found[0].equal(maxima)
    exact = ((kept.double() - maxima.double()[:, None]) * 1.25).exp().sum(1)
    torch.testing.assert_close(found[1][is_kept].double(), exact[is_kept], rtol=4e-6, atol=0)


def test_a_tile_of_which_a_cut_keeps_nothing_weighs_nothing() -> None:
    check_kept()


def test_nearly_nothing_is_seen() -> None:
    keeps, finds = "x = tl.where(is_kept(x, ids, cut_value, cut_id), x, MINUS_INF)", "maxima = tile_maxima(x)"
    mutant = KernelMutant("maxima of all", cut_race.kept_tiles, f"{keeps}\n    {finds}", f"{finds}\n    {keeps}")
    with mutant.planted(), pytest.raises(AssertionError, match=r"== \[0\.0, 0\.0"):
        check_kept()
