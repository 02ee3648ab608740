"""What a step has to emit, bit for bit, from the laws and the noise contract alone."""

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from drawlot import rng
from drawlot.kernels.drafts import PADDING, Drafts, Method
from drawlot.kernels.inputs import RowParams
from drawlot.rng import BONUS, RESIDUAL, TARGET


def replayed(backend: ModuleType, args: tuple[object, ...], *, wide: bool = False) -> list[list[int]]:
    """The tokens that each request emits; args: what `verify_rows` is given, all drafts and rows good ones."""
    logits, params, _, drafts = args[:4]
    assert isinstance(params, RowParams)
    assert isinstance(drafts, Drafts)
    law = backend.law(*args[:4])
    accept, weights = law.accept.numpy(), law.weights.numpy()
    # The rows' own laws: those of as many requests without drafts.
    alone = drafts._replace(
        token_ids=torch.full((len(logits), 1), PADDING),
        cu_rows=torch.arange(len(logits) + 1),
        state_rows=torch.zeros(len(logits), dtype=torch.int64),
        method=torch.zeros(len(logits), dtype=torch.int64),
    )
    bonus = backend.law(*args[:3], alone).weights.numpy()
    emitted = []
    for r in range(len(drafts.token_ids)):
        first, stop = drafts.cu_rows[r : r + 2].tolist()
        tokens = drafts.token_ids[r].tolist()
        n = min(stop - first - 1, *(j for j, t in enumerate([*tokens, -1]) if t == -1))
        seed, anchor, choice = (int(column[first]) for column in (params.seed, params.position, params.choice))
        method, greedy = Method(int(drafts.method[r])), float(params.temperature[first]) == 0
        if method == Method.COUPLED or n == 0 or (greedy and method != Method.SYNTHETIC):
            own = [drawn(bonus[first + j], seed, anchor + j, choice, 0, TARGET, wide) for j in range(n + 1)]
            count = next((j for j in range(n) if own[j] != tokens[j]), n)
            emitted.append([*tokens[:count], own[count]])
            continue
        heads = [coin(seed, anchor, choice, j, wide) < accept[r, j] for j in range(n)]
        if method == Method.BLOCK:
            count = max((j + 1 for j in range(n) if heads[j]), default=0)
        else:
            count = next((j for j in range(n) if not heads[j]), n)
        rejects = count < n and method != Method.SYNTHETIC
        streams, row = RESIDUAL if rejects else BONUS, first + count
        law_of_row = weights[row] if rejects else bonus[row]
        emitted.append([*tokens[:count], drawn(law_of_row, seed, anchor, choice, count, streams, wide)])
    return emitted


def coin(seed: int, anchor: int, choice: int, row: int, wide: bool) -> float:
    w0, w1, _, _ = rng.words(
        *_words(seed, anchor), int(rng.Stream.ACCEPT) + (128 if wide else 0), *_words(0, choice, row)
    )
    return float((rng.uniform64(w0, w1) if wide else rng.uniform32(w0))[0])


def drawn(
    weights: NDArray[np.float64], seed: int, anchor: int, choice: int, row: int, streams: tuple[int, int], wide: bool
) -> int:
    """The race over tiles, then over the tokens of the tile that won."""

    def winner(ids: NDArray[np.int64], masses: NDArray[np.float64], stream: int) -> int:
        noise = rng.gumbel_noise(ids.astype(np.uint64), *_words(seed, anchor), stream, *_words(choice, row), wide=wide)
        return int(ids[np.argmax(np.log(masses) + noise)])

    ids = np.flatnonzero(weights)
    tiles = np.unique(ids // 128)
    tile = winner(tiles, np.array([weights[ids[ids // 128 == t]].sum() for t in tiles]), streams[0])
    inside = ids[ids // 128 == tile]
    return winner(inside, weights[inside], streams[1])


def _words(*numbers: int) -> list[NDArray[np.uint64]]:
    return [np.array([number], dtype=np.int64).view(np.uint64) for number in numbers]
