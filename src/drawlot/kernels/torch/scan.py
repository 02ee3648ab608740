"""The reads of whole rows: tile maxima, and tile masses relative to them."""

import torch
from torch import Tensor

from drawlot.kernels.inputs import TILE
from drawlot.kernels.torch.edits import ordered_keys, unpacked

_CHUNK = 1 << 18  # elements of a temporary: fits the second-level cache of a core


def tile_maxima(tiles: Tensor) -> Tensor:
    """float32 [N, T]; NaN where a tile holds one."""
    return tiles.amax(2)


def tile_log_masses(
    tiles: Tensor, maxima: Tensor, row_max: Tensor, scale: Tensor, cut: Tensor | None = None, *, wide: bool = False
) -> Tensor:
    """log of each tile's sum of exp((value - row_max) scale); -inf for a tile without mass.

    Args:
        tiles: float32 [N, T, 128].
        maxima: float32 [N, T], of the tiles.
        row_max: float32 [N].
        scale: float32 [N], 1 / temperature.
        cut: bool [N, T, 128], the tokens that count; None: all. A tile that keeps any token keeps its maximum.
        wide: Float64 sums for float64 races.

    Returns:
        float32 or float64 [N, T].
    """
    dtype = torch.float64 if wide else torch.float32
    sums = torch.empty(maxima.shape, dtype=dtype, device=tiles.device)
    # An empty tile: -inf - 0 = -inf, exp = 0. The maximum of a row that is used is finite.
    base = torch.where(maxima == -torch.inf, 0.0, maxima)
    scale = scale.to(dtype).view(-1, 1)
    step = max(1, _CHUNK // max(1, tiles[0].numel())) if len(tiles) else 1
    for start in range(0, len(tiles), step):
        rows = slice(start, start + step)
        x = tiles[rows].to(dtype) - base[rows].unsqueeze(2)
        x.mul_(scale[rows].unsqueeze(2)).exp_()
        if cut is not None:
            x.mul_(cut[rows])
        torch.sum(x, 2, out=sums[rows])
    return sums.log_() + (base - row_max.unsqueeze(1)).to(dtype) * scale


def log_total(log_masses: Tensor) -> Tensor:
    """float64 [N]: log of the sum over tiles, always in the same order."""
    return torch.logsumexp(log_masses.to(torch.float64), 1)


def top_tiles(maxima: Tensor, count: int) -> Tensor:
    """int64 [N, count]: the tiles with the largest maxima, lower id first among equals.

    The first n tokens of the order lie in the first n of these tiles: each earlier tile holds a token before any token
    of a later one.
    """
    ids = torch.arange(maxima.shape[1], device=maxima.device)
    return unpacked(ordered_keys(maxima, ids).topk(count, 1).values)[1]


def gather_tiles(tiles: Tensor, tile_ids: Tensor) -> Tensor:
    """float32 [N, M, 128]: the tiles named by tile_ids [N, M]."""
    rows = torch.arange(len(tiles), device=tiles.device).unsqueeze(1)
    return tiles[rows, tile_ids]


def token_ids_of(tile_ids: Tensor) -> Tensor:
    """int64 [N, M, 128]: the token ids of the tiles."""
    lanes = torch.arange(TILE, device=tile_ids.device)
    return tile_ids.unsqueeze(-1) * TILE + lanes
