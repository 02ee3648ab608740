"""By what the Triton backend decides, heard from its kernels in Triton's interpreter: a `law` as other backends have.

Thresholds of `standard` are what its coins are compared with, weights what the last race of a draw is given. Thresholds
of `block` are its formula on what the kernels leave behind; that they decide by it is seen at the neighbours of each.
Rows of one tile, requests of `standard` and `block`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray

from drawlot import RejectionSampler, VerifierOutput
from drawlot.kernels.drafts import PADDING, Law, Method
from drawlot.kernels.triton.verification import draw, laws, settle, weighed

Numbers = NDArray[np.float64]
Given = tuple[RejectionSampler, list[Any]]
LOW, HIGH = 1e-300, float(np.nextafter(1, 0))
"""Coins that pass almost everything, and almost nothing"""


def verify_rows(given: Given) -> VerifierOutput:
    """One call of the verifier; coins come from `tossed`."""
    verifier, args = given
    return verifier(*args)


def law(given: Given) -> Law:
    """Of each request its thresholds; of each row what it draws from if it is the first that rejects."""
    verifier, args = given
    requests, k = args[2].shape
    vocab_size = verifier.sampler.vocab_size
    accept, weights = np.full((requests, k), np.nan), np.zeros((requests, k + 1, vocab_size))
    for count in range(k + 1):
        with tossed(coins_until(requests, k, count)), _heard(accept, weights, args[2].numpy(), count) as winners:
            output = verify_rows(given)
        for r in np.flatnonzero(output.num_accepted.numpy() == count):
            assert int(output.sampled_token_ids[r, count]) == winners.get(r, -1), "a token that another row has drawn"
    if Method.BLOCK in verifier._methods.in_use():
        # One high coin, the last: whatever can be compared is weighed.
        coins = np.full((requests, k), LOW)
        coins[:, -1] = HIGH
        with tossed(coins), _blocks_heard(accept, verifier, args[1].cu_num_logits[:-1].tolist(), args[2].numpy()):
            verify_rows(given)
    return Law(torch.from_numpy(accept), torch.from_numpy(weights.reshape(-1, vocab_size)))


def coins_until(requests: int, k: int, count: int) -> Numbers:
    """[R, K], low before a column: of `standard` all before a rejection have to be, of `block` the last decides."""
    coins = np.full((requests, k), HIGH)
    coins[:, :count] = LOW
    return coins


@contextmanager
def tossed(coins: Numbers) -> Iterator[None]:
    """Coins [R, K] of the requests whose seeds are 0 .. R - 1, in the place of the kernels' own.

    A row's one tile has no noise, which could not decide anything and takes a quarter of the time.
    """

    def coin_of(key: Any, wide: Any) -> Any:
        request, column = _number(key[0]), _number(key[3])
        return tl.full([], coins[request, column] if column < coins.shape[1] else HIGH, tl.float64)

    def gumbel_of_range(first: Any, n: Any, *key_and_wide: Any) -> Any:
        return tl.full([n], 0.0, tl.float64 if key_and_wide[-1] else tl.float32)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(laws, "coin_of", coin_of))
        for module in (laws, draw, weighed):
            patches.enter_context(mock.patch.object(module, "gumbel_of_range", gumbel_of_range))
        yield


@contextmanager
def _heard(accept: Numbers, weights: Numbers, drafts: NDArray[np.int64], rejecting: int) -> Iterator[dict[int, int]]:
    """Writes down thresholds of `standard`, and what rows `rejecting` draw from at last; the tokens they draw."""
    tossing, by_coin, of_range = laws.coin_of, laws.accepts, draw.race_of_range
    of_list, of_lists_race = draw.draw_from_list, draw.race_in_list
    now, keys, winners = [0], list[Any](), dict[int, int]()

    def coin_of(key: Any, wide: Any) -> Any:
        now[0] = _number(key[0])
        return tossing(key, wide)

    def accepts(methods: Any, method: Any, column: Any, draft: Any, ratio: Any, coin: Any) -> Any:
        j = _number(column)
        if j < accept.shape[1] and drafts[now[0], j] != PADDING and _number(method) == Method.STANDARD:
            accept[now[0], j] = min(ratio.handle.data.item(), 1)
        return by_coin(methods, method, column, draft, ratio, coin)

    def put(ids: NDArray[np.int64], z: Any, key: Any, winner: Any) -> None:
        if _number(key[3]) == rejecting:
            live = ids < weights.shape[2]
            weights[_number(key[0]), _number(key[3]), ids[live]] = np.exp(z.handle.data[live].astype(np.float64))
            winners[_number(key[0])] = _number(winner)

    def race_of_range(first: Any, z: Any, key: Any, stream: Any, n: Any, wide: Any) -> Any:
        winner = of_range(first, z, key, stream, n, wide)
        put(np.arange(z.handle.data.size), z, key, winner)
        return winner

    def draw_from_list(*args: Any) -> Any:
        keys.append(args[4])
        return of_list(*args)

    def race_in_list(weight: Any, z: Any, kept: Any, token: Any, noises: Any) -> Any:
        winner = of_lists_race(weight, z, kept, token, noises)
        put(token.handle.data, tl.where(kept, z, float("-inf")), keys[-1], winner)
        return winner

    with ExitStack() as patches:
        heard_in_draw = race_of_range, draw_from_list, race_in_list
        for module, heard in ((laws, coin_of), (laws, accepts), *((draw, function) for function in heard_in_draw)):
            patches.enter_context(mock.patch.object(module, heard.__name__, heard))
        yield winners


@contextmanager
def _blocks_heard(
    accept: Numbers, verifier: RejectionSampler, first: list[int], drafts: NDArray[np.int64]
) -> Iterator[None]:
    """Writes down thresholds of `block`, of which the kernels leave ratios and what is left of the rows they weigh."""
    deciding, of_point_masses = settle.accept_block, set[int]()

    def accept_block(judged: Any, row: Any, num_drafts: Any, dense: Any, k: Any) -> Any:
        of_point_masses.add(first.index(_number(row)))
        return deciding(judged, row, num_drafts, dense, k)

    with mock.patch.object(settle, "accept_block", accept_block):
        yield
    judged, leftovers, verdicts = verifier._steps._memory[:3]
    opened = set(np.flatnonzero(verdicts.num_drafts[: len(first)].numpy() >= 0))
    for r in of_point_masses | opened:
        given = int((drafts[r] != PADDING).sum())
        rows = slice(first[r], first[r] + given + 1)
        ratio, left_of_rows = judged.ratios[rows].numpy(), leftovers.masses[rows, 0].numpy()
        # A bad row ends the drafts.
        n = int(np.argmax(np.append(ratio[:given] == -1, True)))
        prefix = [1.0]
        for i in range(n):
            prefix.append(min(prefix[i] * ratio[i], 1.0) if prefix[i] > 0 else 0.0)
        for i in range(1, n + 1):
            h = prefix[i]
            if i < n and r not in opened:
                left = prefix[i] * (1 - ratio[i])
                rest = left + 1 - prefix[i]
                h = left / rest if rest else 1.0
            elif i < n and left_of_rows[i] != -1:
                left = left_of_rows[i]
                h = np.float64(left) / (np.float64(left + np.float32(1)) - prefix[i])
            accept[r, i - 1] = h


def _number(x: Any) -> int:
    """A number of a kernel's."""
    data = x.handle.data if hasattr(x, "handle") else getattr(x, "value", x)
    return int(np.ravel(data)[0])
