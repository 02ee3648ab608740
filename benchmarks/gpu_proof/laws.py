"""2^26 draws of each law of tests/statistical, by chi-square; false alarms once in 10^9, planted mistakes must fail."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.gpu_proof.proof import Proof, Setting
from drawlot import SamplingParams, sample
from drawlot.kernels.inputs import TILE
from drawlot.testing import chi_square, independence
from tests.statistical.draws import EMPTY, law_of
from tests.statistical.test_independence import BASE, CHANGES, EVEN, TILES
from tests.statistical.test_laws import LAWS, leaked
from tests.statistical.test_ties import ROWS

_AT_ONCE = 1 << 20  # tiles in one call
_VOCAB = 128_256
_BORDERS = torch.tensor([0, 127, 128, 255, 16_383, 16_384, 64_127, 64_128, _VOCAB - 129, _VOCAB - 128, _VOCAB - 1])


def prove(setting: Setting, proof: Proof) -> None:
    """Laws, ties, wide rows whose live ids lie on borders of tiles, and draws that must not know of each other."""
    if setting.small:
        _law(setting, proof, "counts", torch.as_tensor(LAWS["counts"][0]).float(), 1 << 14, {})
        proof.skip("the other laws", "too many draws for a CPU")
        proof.summary = "one law at 2^14 draws"
        return
    draws = 1 << 26
    for name, (logits, params) in LAWS.items():
        _law(setting, proof, name, torch.as_tensor(logits).float(), draws, params)
    _law(setting, proof, "counts, float64 noise", torch.as_tensor(LAWS["counts"][0]).float(), draws, {}, wide=True)
    for name, (row, _, params) in ROWS.items():
        _law(setting, proof, f"ties: {name}", row, draws, params)
    for name, row, params in wide_rows():
        _law(setting, proof, name, row, 1 << 20, params)
    _pairs(setting, proof, draws)
    proof.summary = f"{len(LAWS)} laws and {len(ROWS)} kinds of ties at 2^26 draws, borders of wide rows, pairs"


def wide_rows() -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Live ids on both sides of borders of tiles, alone and among tokens that a filter drops."""
    weights = torch.arange(1.0, len(_BORDERS) + 1).log()
    alone = torch.full((_VOCAB,), EMPTY)
    alone[_BORDERS] = weights
    crowded = torch.full((_VOCAB,), -3.0)
    crowded[_BORDERS] = weights
    yield "borders of a wide row", alone, {}
    yield "borders of a wide row, top-k", crowded, {"top_k": len(_BORDERS)}
    yield "borders of a wide row, min-p", crowded, {"min_p": 0.05}
    yield "borders of a wide row, top-p", crowded, {"top_p": 0.014, "temperature": 0.9}


def _law(
    setting: Setting,
    proof: Proof,
    name: str,
    row: Tensor,
    draws: int,
    params: dict[str, Any],
    *,
    wide: bool = False,
) -> None:
    law = law_of(row, **params)
    counts = _counts(setting, row, draws, len(law), params, wide)
    fit, moved = chi_square(counts, law), chi_square(leaked(counts, law), law)
    figures = {"draws": draws, "chi_square": round(fit.statistic, 1), "limit": round(fit.high, 1), "bins": fit.bins}
    proof.check(name, fit.ok, **figures)
    proof.check(f"seen: {name}, 1 % moved", not moved.ok, chi_square=round(moved.statistic, 1))


def _counts(
    setting: Setting, row: Tensor, draws: int, bins: int, params: dict[str, Any], wide: bool
) -> NDArray[np.int64]:
    """How often each id was drawn."""
    counts = torch.zeros(bins, dtype=torch.int64, device=setting.device)
    most = max(1, _AT_ONCE // -(-len(row) // TILE))
    for start in range(0, draws, most):
        positions = torch.arange(start, min(draws, start + most), device=setting.device)
        counts += torch.bincount(tokens_of(setting, row, positions, wide=wide, **params), minlength=bins)
    return counts.cpu().numpy()


def tokens_of(
    setting: Setting, row: Tensor, positions: Tensor, *, choice: int = 0, wide: bool = False, **params: Any
) -> Tensor:
    """One token of the row for each position."""
    out = sample(
        row.to(setting.device).expand(len(positions), -1),
        SamplingParams(**{"seed": 2024, **params}),
        positions=positions,
        choice_index=choice,
        use_fp64_gumbel=wide,
        backend=setting.backend.name,
    )
    return out.token_ids


def _pairs(setting: Setting, proof: Proof, draws: int) -> None:
    """16 x 16 tables of draws whose keys differ in one part, and of the tile and the lane of one draw."""

    def even(positions: Tensor, key: dict[str, int]) -> Tensor:
        return tokens_of(setting, EVEN, positions + key["first"], seed=key["seed"], choice=key["choice"])

    tables = {name: np.zeros((16, 16), np.int64) for name in CHANGES}
    tiles_and_lanes, coupled = np.zeros((16, 16), np.int64), np.zeros((16, 16), np.int64)
    most = _AT_ONCE // len(TILES)
    for start in range(0, draws, most):
        places = torch.arange(start, min(draws, start + most), device=setting.device)
        # At every second position, so that neighbouring positions are another set of draws.
        base = even(2 * places, BASE)
        for name, change in CHANGES.items():
            other = even(2 * places, {**BASE, **change})
            tables[name] += _table(base, other)
        coupled += _table(base, torch.where(places % 100 == 0, base, other))
        tokens = tokens_of(setting, TILES.flatten(), places)
        tiles_and_lanes += _table(tokens // TILE, tokens % TILE)
    tables["the tile and the token inside"] = tiles_and_lanes
    for name, table in tables.items():
        fit = independence(table)
        uniform = chi_square(table, np.full(table.size, 1 / table.size))
        proof.check(f"pairs: {name}", fit.ok and uniform.ok, pairs=draws, chi_square=round(fit.statistic, 1))
    proof.check("seen: one pair in a hundred coupled", not independence(coupled).ok)


def _table(first: Tensor, second: Tensor) -> NDArray[np.int64]:
    return torch.bincount(first * 16 + second, minlength=256).view(16, 16).cpu().numpy()
