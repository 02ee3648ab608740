"""The law of the Triton backend's compiled kernels, asked on a GPU; `triton_law.py` hears it in Triton's interpreter.

Coins and the noise of tiles come from tables, so that what they decide is found bit by bit from what is emitted. What
the tokens of a tile weigh is noted by the race among them, beside its winner. For requests of `standard` and `block`.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.jit import JITFunction

from drawlot import VerifierOutput
from drawlot.kernels.drafts import PADDING, Law
from drawlot.kernels.triton import launch
from drawlot.kernels.triton.values import TILE
from drawlot.kernels.triton.verification import cut, draw, laws, weighed
from tests.verification.triton_law import HIGH, LOW, Given, Numbers, coins_until

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_AHEAD, _BEHIND = 1e3, -1e30
"""Noise by which a tile wins, and by which it does not, whatever their masses"""

_ROOM, _COLUMNS, _TILES, _IDS = 1024, tl.constexpr(8), tl.constexpr(4), tl.constexpr(512)
_coins = torch.zeros(_ROOM, _COLUMNS.value, dtype=torch.float64, device=DEVICE)
_noise = torch.zeros(_ROOM, _TILES.value, dtype=torch.float64, device=DEVICE)
_weights = torch.zeros(_ROOM, _COLUMNS.value, _IDS.value, dtype=torch.float64, device=DEVICE)
_winners = torch.zeros(_ROOM, _COLUMNS.value, dtype=torch.float64, device=DEVICE)
# Kernels have no parameter for tables that only tests have.
_COINS_AT, _NOISE_AT = tl.constexpr(_coins.data_ptr()), tl.constexpr(_noise.data_ptr())
_WEIGHTS_AT, _WINNERS_AT = tl.constexpr(_weights.data_ptr()), tl.constexpr(_winners.data_ptr())
_race_in_list, _race_of_range = draw.race_in_list, draw.race_of_range


@triton.jit
def _table(ADDRESS: tl.constexpr):
    return tl.full([], ADDRESS, tl.int64).to(tl.pointer_type(tl.float64))


@triton.jit
def coin_of(key, WIDE: tl.constexpr):
    """The coin of a row from the table; the request's seed is its index."""
    return tl.load(_table(_COINS_AT) + key[0] * _COLUMNS + key[3])


@triton.jit
def gumbel_of_range(first, N: tl.constexpr, seed, position, stream, choice, step_row, WIDE: tl.constexpr):
    """The noise of tiles from the table."""
    tile = first + tl.arange(0, N)
    noise = tl.load(_table(_NOISE_AT) + seed * _TILES + tile, mask=tile < _TILES, other=0.0)
    return noise.to(tl.float64 if WIDE else tl.float32)


@triton.jit
def race_of_range(first, z, key, stream, N: tl.constexpr, WIDE: tl.constexpr):
    """The race among a tile's tokens, which notes their weights."""
    winner = _race_of_range(first, z, key, stream, N, WIDE)
    _put(first + tl.arange(0, N), z, key[0] * _COLUMNS + key[3], winner)
    return winner


@triton.jit
def noises_of_list(token, key, tile_stream, token_stream, WIDE: tl.constexpr):
    """Noise of tiles from the table; that of tokens is the same for all: it tells the race whose row it is."""
    tile = token // TILE
    noise = tl.load(_table(_NOISE_AT) + key[0] * _TILES + tile, mask=tile < _TILES, other=0.0)
    wide = tl.float64 if WIDE else tl.float32
    return noise.to(wide), (key[0] * _COLUMNS + key[3] + token * 0).to(wide)


@triton.jit
def race_in_list(weight, z, kept, token, noises):
    """The race among listed tokens, which notes their weights."""
    winner = _race_in_list(weight, z, kept, token, noises)
    inside = kept & (token // TILE == winner // TILE)
    _put(token, tl.where(inside, z, float("-inf")), tl.max(noises[1]).to(tl.int64), winner)
    return winner


@triton.jit
def _put(ids, z, row, winner):
    tl.store(_table(_WEIGHTS_AT) + row * _IDS + ids, tl.exp(z.to(tl.float64)), mask=ids < _IDS)
    tl.store(_table(_WINNERS_AT) + row, winner.to(tl.float64))


@contextmanager
def asked() -> Iterator[None]:
    """Kernels are compiled with the tables in their places, and afterwards without."""
    places = (
        (laws, coin_of),
        *((module, gumbel_of_range) for module in (laws, draw, weighed)),
        (draw, race_of_range),
        *((module, noises_of_list) for module in (cut, draw)),
        (draw, race_in_list),
    )
    with ExitStack() as patches:
        for module, function in places:
            patches.enter_context(mock.patch.object(module, function.__name__, function))
        forget_compiled()
        yield
    forget_compiled()


def forget_compiled() -> None:
    """Functions that kernels call may have changed."""
    launch._compiled.clear()
    for function in gc.get_objects():
        if type(function) is JITFunction:
            function.hash = None
            function.used_global_vals.clear()
            function.device_caches.clear()


@contextmanager
def tossed(coins: Numbers) -> Iterator[None]:
    """Coins [R, K] of the requests whose seeds are 0 .. R - 1."""
    _toss(coins)
    yield


def _toss(coins: Numbers) -> None:
    _coins.fill_(HIGH)
    _coins[: len(coins), : coins.shape[1]] = torch.from_numpy(np.ascontiguousarray(coins))


def verify_rows(given: Given) -> VerifierOutput:
    """One call of the verifier, by the tables; its numbers on the CPU."""
    verifier, args = given
    output = verifier(*args)
    return output._replace(
        num_accepted=output.num_accepted.cpu(),
        num_sampled=output.num_sampled.cpu(),
        sampled_token_ids=output.sampled_token_ids.cpu(),
    )


def law(given: Given) -> Law:
    """Of each request its thresholds; of each row what it draws from if it is the first that rejects."""
    verifier, args = given
    drafts, vocab_size = args[2].cpu(), verifier.sampler.vocab_size
    requests, k = drafts.shape
    assert requests <= _ROOM
    assert vocab_size <= _IDS.value
    _noise.zero_()
    accept = np.stack([_threshold(given, requests, k, j) for j in range(k)], 1)
    accept[drafts.numpy() == PADDING] = np.nan
    weights = np.stack([_weights_of(given, requests, k, count, vocab_size) for count in range(k + 1)], 1)
    return Law(torch.from_numpy(accept), torch.from_numpy(weights.reshape(-1, vocab_size)))


def _threshold(given: Given, requests: int, k: int, j: int) -> Numbers:
    """[R]: the number that a coin of column j must be below, exactly."""

    def passes(coin: Numbers) -> NDArray[np.bool_]:
        coins = coins_until(requests, k, j)
        coins[:, j] = coin
        _toss(coins)
        return verify_rows(given).num_accepted.numpy() > j

    never, always = ~passes(np.full(requests, LOW)), passes(np.full(requests, HIGH))
    threshold = _first_to_fail(passes, np.full(requests, LOW), np.full(requests, HIGH))
    return np.where(never, 0.0, np.where(always, 1.0, threshold))


def _first_to_fail(
    passes: Callable[[Numbers], NDArray[np.bool_]], low: Numbers, high: Numbers, grain: int = 1
) -> Numbers:
    """The smallest positive float64 that does not pass, where low does and high does not; or so many neighbours up."""
    below, above = low.view(np.int64), high.view(np.int64)
    while (above - below > grain).any():
        middle = below + (above - below) // 2
        good = passes(middle.view(np.float64))
        below, above = np.where(good, middle, below), np.where(good, above, middle)
    return above.view(np.float64)


def _weights_of(given: Given, requests: int, k: int, count: int, vocab_size: int) -> Numbers:
    """[R, V]: what row `count` of each request draws from if it is the first that rejects."""
    _toss(coins_until(requests, k, count))
    tiles = range(-(-vocab_size // TILE.value))
    weights = np.zeros((requests, vocab_size))
    for tile in tiles:
        _noise.fill_(_BEHIND)
        _noise[:, tile] = _AHEAD
        _weights.zero_()
        _winners.fill_(-1)
        output = verify_rows(given)
        emitted, winners = output.sampled_token_ids.numpy()[:, count], _winners[:requests, count].cpu().numpy()
        asked_for, raced = output.num_accepted.numpy() == count, winners >= 0
        assert (emitted == winners)[asked_for & raced].all(), "a token that another row has drawn"
        its = slice(tile * TILE.value, min((tile + 1) * TILE.value, vocab_size))
        weights[:, its] = _weights[:requests, count, its].cpu()
        # Greedy rows run no race.
        sure = np.flatnonzero(asked_for & ~raced)
        weights[sure, emitted[sure]] = 1
    if len(tiles) > 1:
        _apply_masses(given, weights, count, len(tiles))
    _noise.zero_()
    return weights


def _apply_masses(given: Given, weights: Numbers, count: int, num_tiles: int) -> None:
    """Divides what the race over tiles leaves each tile among its tokens."""
    requests = len(weights)
    of_tiles = [weights[:, tile * TILE.value : (tile + 1) * TILE.value] for tile in range(num_tiles)]
    own = np.stack([part.sum(1) for part in of_tiles], 1)
    heaviest = own.argmax(1)
    masses = np.where(np.arange(num_tiles) == heaviest[:, None], own, 0.0)
    for tile in range(num_tiles):

        def loses(shift: Numbers, tile: int = tile) -> NDArray[np.bool_]:
            noise = np.full((requests, num_tiles), _BEHIND)
            noise[np.arange(requests), heaviest] = 0
            noise[:, tile] = np.where(heaviest == tile, 0, shift - 64)
            _noise[:requests, :num_tiles] = torch.from_numpy(noise)
            drawn = verify_rows(given).sampled_token_ids.numpy()[:, count]
            return drawn // TILE.value != tile

        # exp(-64) of the other's mass to exp(64) of it.
        first, last = np.full(requests, 1.0), np.full(requests, 128.0)
        ahead = _first_to_fail(loses, first, last, grain=2**20) - 64
        live = (heaviest != tile) & (own[:, tile] > 0)
        masses[:, tile] = np.where(live, own[np.arange(requests), heaviest] * np.exp(-ahead), masses[:, tile])
    for tile, part in enumerate(of_tiles):
        part *= (masses[:, tile] / np.where(own[:, tile] > 0, own[:, tile], 1))[:, None]
