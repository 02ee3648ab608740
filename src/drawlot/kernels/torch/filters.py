"""Stages 3 and 4: where each filtered row is cut, from its few best tiles if they suffice, else from the whole row."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot.kernels.inputs import RowParams
from drawlot.kernels.torch.edits import ordered_keys, unpacked
from drawlot.kernels.torch.scan import gather_tiles, token_ids_of, top_tiles

KEEP_ALL = -(2**63)
"""The cut key of a row without filters."""
_MOST_LISTED = 1024  # a larger top_k is cut from the whole row
_TILES_WITHOUT_K, _LISTED_WITHOUT_K = 64, 512  # what rows with top_p or min_p alone are cut from first
_FIXED_POINT = 2.0**44  # integer masses add up alike in any order; 2^44 * 2^18 tokens stay below 2^63


class Candidates(NamedTuple):
    """The best tiles of some rows, and where the rows are cut."""

    tile_ids: Tensor
    """int64 [N, M]"""
    values: Tensor
    """float32 [N, M, 128]"""
    kept: Tensor
    """bool [N, M, 128]"""
    cut_key: Tensor
    """int64 [N]"""
    certified: Tensor
    """bool [N]: the cut is exact; the others need `exact_cut`"""


def listable(params: RowParams) -> Tensor:
    """bool [N]: rows whose cut may be found in a short list of candidates."""
    return params.top_k <= _MOST_LISTED


def cut_from_best_tiles(
    tiles: Tensor, maxima: Tensor, row_max: Tensor, scale: Tensor, log_mass: Tensor | None, params: RowParams
) -> Candidates:
    """Cuts rows by top_k, min_p and top_p within their best tiles.

    The first k tokens of a row lie in its k best tiles, so a row with top_k is always certified. A row without is
    certified if its cut comes before the largest token of the first tile left out.

    Args:
        tiles: float32 [N, T, 128]; maxima: float32 [N, T]; row_max and scale: float32 [N].
        log_mass: float64 [N], log of the whole rows' sum of exp(z); needed where some row has no top_k.
        params: Of these rows; every top_k at most 1024.
    """
    num_tiles = maxima.shape[1]
    k = params.top_k
    has_k = k > 0
    longest, without_k = int(k.max()), not bool(has_k.all())
    count = min(num_tiles, max(longest, _TILES_WITHOUT_K) if without_k else longest)
    ahead = top_tiles(maxima, min(num_tiles, count + 1))
    tile_ids = ahead[:, :count]
    values = gather_tiles(tiles, tile_ids)
    keys = ordered_keys(values, token_ids_of(tile_ids))
    listed = min(keys[0].numel(), max(longest, _LISTED_WITHOUT_K) if without_k else longest)
    best = keys.flatten(1).topk(listed, 1).values
    x, _ = unpacked(best)

    # Everything before the best token of the first tile left out is in the list, and in order.
    complete = (x > -torch.inf).sum(1)
    if count < num_tiles:
        complete = torch.minimum(complete, (x > maxima.gather(1, ahead[:, count:])).sum(1))
    elif listed < keys[0].numel():
        complete = torch.where(complete < listed, complete, listed - 1)
    available = torch.where(has_k, torch.minimum(k, (x > -torch.inf).sum(1)), complete)

    z = (x - row_max.unsqueeze(1)) * scale.unsqueeze(1)
    above_line = z >= torch.log(params.min_p).float().unsqueeze(1)
    n_m = torch.where(params.min_p > 0, above_line.sum(1), torch.iinfo(torch.int64).max)
    n = torch.minimum(available, n_m)
    # A limit that is known: by top_k, or by a min-p line inside the complete part of the list.
    limited = has_k | (n_m < complete)
    mass = z.to(torch.float64).exp().cumsum(1)
    of_limit = mass.gather(1, (n - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    total = of_limit if log_mass is None else torch.where(limited, of_limit, log_mass.exp())
    n_p = (mass < (params.top_p * total).unsqueeze(1)).sum(1) + 1
    cut_by_p = (params.top_p < 1) & (n_p <= n)
    n = torch.where(cut_by_p, n_p, n).clamp(min=1)
    cut_key = best.gather(1, (n - 1).unsqueeze(1)).squeeze(1)
    return Candidates(tile_ids, values, keys >= cut_key.view(-1, 1, 1), cut_key, limited | cut_by_p)


def exact_cut(values: Tensor, row_max: Tensor, scale: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The cut key of one row, whatever its shape, from counts and masses of 2^16 buckets of values; no sort of the row.

    Args:
        values: float32 [V]; row_max and scale: float32 scalars.
        top_k: <= 0 is off; top_p: 1 is off; min_p: 0 is off.

    Returns:
        int64 scalar.
    """
    bits = (values + 0.0).view(torch.int32)
    bucket = 32767 - ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> 16)  # best first
    counts = torch.bincount(bucket, minlength=1 << 16).cumsum(0)
    z = (values - row_max) * scale
    n = int((values > -torch.inf).count_nonzero())
    if top_k > 0:
        n = min(n, top_k)
    if min_p > 0:
        n = min(n, max(1, int((z >= math.log(min_p)).count_nonzero())))

    def bucket_in_order(index: int) -> tuple[Tensor, int]:
        """The keys of a bucket in order, and the number of tokens before it."""
        ids = (bucket == index).nonzero().squeeze(1)
        keys = ordered_keys(values[ids], ids).sort(descending=True).values
        return keys, int(counts[index - 1]) if index else 0

    if top_p < 1:
        fixed = (z.exp().to(torch.float64) * _FIXED_POINT).round_().to(torch.int64)
        masses = torch.zeros(1 << 16, dtype=torch.int64, device=values.device)
        masses = masses.index_add_(0, bucket, fixed).cumsum(0)

        def masses_in_order(index: int) -> tuple[Tensor, int]:
            """The running masses within a bucket, counted from the row's first token, and the tokens before it."""
            keys, before = bucket_in_order(index)
            return fixed[unpacked(keys)[1]].cumsum(0) + (masses[index - 1] if index else 0), before

        running, before = masses_in_order(int(torch.searchsorted(counts, n)))
        target = math.ceil(top_p * int(running[n - before - 1]))
        running, before = masses_in_order(int(torch.searchsorted(masses, target)))
        n = before + int(torch.searchsorted(running, target)) + 1
    keys, before = bucket_in_order(int(torch.searchsorted(counts, n)))
    return keys[n - before - 1]


def kept_in_tile(values: Tensor, ids: Tensor, cut_key: Tensor) -> Tensor:
    """bool [N, 128]: which tokens of one tile a row [N] are not after the cut [N]."""
    return ordered_keys(values, ids) >= cut_key.unsqueeze(1)


def kept_by_key(tiles: Tensor, cut_key: Tensor) -> Tensor:
    """bool, like tiles [N, T, 128]: the tokens not after the cut [N]."""
    cut_value, cut_id = (part.view(-1, 1, 1) for part in unpacked(cut_key))
    ids = token_ids_of(torch.arange(tiles.shape[1], device=tiles.device))
    kept = tiles > cut_value
    return kept.logical_or_((tiles == cut_value).logical_and_(ids <= cut_id))
