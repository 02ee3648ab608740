"""Tiny worlds in which the law of all that verification emits is summed up exactly, draw by draw and coin by coin.

Target and drafter are tables of logits that depend on the whole prefix. For every tuple of drafts, `law` of a backend
says where the coins' thresholds lie and what each row draws from; then `verify_rows` itself runs with coins on both
sides of every threshold, at its nearest neighbours, and says what it accepts. The sum over all of it is a law of
sequences, to be compared with the target's own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from types import ModuleType
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, SparseDraftLogits, rng
from drawlot.kernels import reference
from drawlot.kernels import torch as torch_backend
from drawlot.kernels.drafts import refused

BACKENDS: dict[str, ModuleType] = {"reference": reference, "torch": torch_backend}
TOLERANCE = {"reference": 1e-12, "torch": 1e-6}
_NEXT_TO_NO = 1e-300  # no coin is 0, and none may be below a threshold of 0

Numbers = NDArray[np.float64]
Prefix = tuple[int, ...]


@dataclass
class World:
    """p and q by prefix, over few live ids of a vocabulary."""

    target: Callable[[Prefix], Numbers]
    """Logits [v] of the live ids, given a prefix of live ids' indices"""
    drafter: Callable[[Prefix], Numbers]
    k: int
    ids: tuple[int, ...]
    method: str = "standard"
    form: str = "dense"
    """What is known of q: dense, wider (dense, with more columns), lse (dense, with its log-sum-exp), sparse, point"""
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: Prefix = ()
    refused: Prefix = ()
    """What a grammar forbids, indices of live ids; drafts of it are refused"""
    stops: Callable[[Prefix], bool] = field(default=lambda _: False)
    """After which drafts there is none"""
    device: str = "cpu"
    wide: bool = False
    """Float64 noise"""

    @property
    def v(self) -> int:
        return len(self.ids)

    @cached_property
    def vocab_size(self) -> int:
        return max(self.ids) + 1

    def p(self, prefix: Prefix) -> Numbers:
        """[v]: the target's processed law, by the formulas alone."""
        row = self._row(self.target(prefix))
        row[self._tokens(self.refused)] = -np.inf
        return processed(row, self.params, self._tokens(self.prompt), self._tokens(prefix))[list(self.ids)]

    def q(self, prefix: Prefix) -> Numbers:
        """[v]: what the drafter draws from."""
        logits = self._draft_row(prefix).astype(np.float64)[list(self.ids)]
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def _row(self, live: Numbers) -> NDArray[np.float32]:
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[list(self.ids)] = live
        return row

    def _draft_row(self, prefix: Prefix) -> NDArray[np.float32]:
        row = self._row(self.drafter(prefix))
        if self.form == "sparse":  # the best two
            row[np.argsort(-row, kind="stable")[2:]] = -np.inf
        return row

    def _tokens(self, prefix: Prefix) -> list[int]:
        return [self.ids[i] for i in prefix]

    def drafted(self, context: Prefix) -> tuple[list[Prefix], Numbers]:
        """All tuples of drafts, and their probabilities."""
        leaves, open_ones = [], [((), 1.0)]
        while open_ones:
            drafts, share = open_ones.pop()
            if len(drafts) == self.k or self.stops(drafts):
                leaves.append((drafts, share))
            else:
                q = self.q(context + drafts)
                open_ones += [((*drafts, i), share * q[i]) for i in range(self.v) if q[i] > 0]
        return [drafts for drafts, _ in leaves], np.array([share for _, share in leaves])

    def verifier(self, backend: str, drafts: list[Prefix], context: Prefix) -> tuple[RejectionSampler, list[object]]:
        """A verifier, and what it is given for one request a tuple of drafts, with the request's index as its seed."""
        sampler = Sampler(
            len(drafts) + 1, self.vocab_size, device=self.device, backend=backend, use_fp64_gumbel=self.wide
        )
        verifier = RejectionSampler(
            sampler, num_speculative_tokens=self.k, method=self.method, synthetic_rates=[0.5] * self.k
        )
        # Requests lie in their state rows in reverse order, and row 0 is nobody's.
        state_rows = torch.arange(len(drafts), 0, -1)
        lines = np.full((len(drafts) + 1, self.k, self.vocab_size), np.nan, np.float32)
        rows, inputs = [], []
        draft_ids = torch.full((len(drafts), self.k), -1)
        for r, tokens in enumerate(drafts):
            own = {name: getattr(self.params, name) for name in self.params.__slots__} | {"seed": r}
            sampler.add_request(
                int(state_rows[r]), SamplingParams(**own), self._tokens(self.prompt), self._tokens(context)
            )
            padded = tokens + (0,) * (self.k - len(tokens))
            prefixes = [context + padded[:j] for j in range(self.k + 1)]
            rows += [self._row(self.target(prefix)) for prefix in prefixes]
            lines[state_rows[r]] = [self._draft_row(prefix) for prefix in prefixes[:-1]]
            inputs += [0, *self._tokens(padded)]
            for j, i in enumerate(tokens):
                draft_ids[r, j] = refused(self.ids[i]) if i in self.refused else self.ids[i]
        columns = torch.arange(self.k + 1).repeat(len(drafts))
        fields = (
            state_rows,
            state_rows.repeat_interleave(self.k + 1),
            columns,
            columns + len(self.prompt) + len(context),
            torch.tensor(inputs),
            torch.arange(len(drafts) + 1, dtype=torch.int32) * (self.k + 1),
        )
        logits_rows = LogitsRows(*(field.to(self.device) for field in fields))
        logits, bitmask = torch.from_numpy(np.stack(rows)), None
        if self.refused:
            allowed = np.ones(-(-self.vocab_size // 32) * 32, np.uint8)
            allowed[self._tokens(self.refused)] = 0
            words = np.packbits(allowed, bitorder="little").view(np.int32)
            bitmask = torch.from_numpy(np.tile(words, (len(logits), 1))).to(self.device)
        q, lse = self._known_of_q(torch.from_numpy(lines).to(self.device))
        return verifier, [logits.to(self.device), logits_rows, draft_ids.to(self.device), q, lse, bitmask]

    def _known_of_q(self, dense: Tensor) -> tuple[object, Tensor | None]:
        if self.form == "point":
            return None, None
        if self.form == "sparse":
            values, ids = dense.topk(min(2, self.v), dim=2)
            some = values > -torch.inf
            # What stands in unused cells is nobody's business.
            return SparseDraftLogits(torch.where(some, ids, -1), torch.where(some, values, 5.0)), None
        if self.form == "wider":
            return torch.nn.functional.pad(dense, (0, 3), value=2.0), None
        return dense, dense.logsumexp(2) if self.form == "lse" else None

    def captured(self, backend: str, context: Prefix, drafts: list[Prefix]) -> tuple[object, ...]:
        """What `verify_rows` is given."""
        verifier, args = self.verifier(backend, drafts, context)
        seen: list[tuple[object, ...]] = []

        def verify_rows(*args: object, **kwargs: object) -> object:
            seen.append(args)
            return BACKENDS[backend].verify_rows(*args, **kwargs)

        verifier._verify_rows = verify_rows
        verifier(*args)
        return seen[0]

    def one_step(self, backend: str, context: Prefix) -> list[Numbers]:
        """The probabilities of emitting exactly m tokens: arrays of m axes [v, .., v], for m = 1 .. K + 1."""
        drafts, drawn = self.drafted(context)
        args = self.captured(backend, context, drafts)
        accept, weights = (part.numpy() for part in BACKENDS[backend].law(*args[:4]))
        weights = weights.reshape(len(drafts), self.k + 1, -1)
        dead = np.setdiff1d(np.arange(self.vocab_size), self.ids)
        assert not weights[..., dead].any(), "an id that the target cannot draw"
        weights = weights[..., list(self.ids)]
        emit = weights / weights.sum(2, keepdims=True).clip(min=_NEXT_TO_NO)
        emitted = [np.zeros((self.v,) * m) for m in range(1, self.k + 2)]
        tosses = ~np.isnan(accept)
        for r in np.flatnonzero(~tosses.any(1)):
            # Rows that draw for themselves accept a draft where they draw it.
            d, reached = drafts[r], drawn[r]
            for j in range(len(d) + 1):
                own = emit[r, j].copy()
                if j < len(d):
                    own[d[j]] = 0
                emitted[j][d[:j]] += reached * own
                reached *= emit[r, j, d[j]] if j < len(d) else 0
        chance = np.minimum(accept, 1)
        for pattern in product((True, False), repeat=self.k):
            below = np.array(pattern)
            # The largest number below a threshold, and the threshold itself, which is not below it.
            coins = np.where(below, np.nextafter(accept, 0), accept).clip(min=_NEXT_TO_NO)
            # Where no coin is tossed one pattern of two counts.
            share = drawn * np.where(tosses, np.where(below, chance, 1 - chance), below).prod(1) * tosses.any(1)
            if not share.any():
                continue
            with tossed(coins):
                verified = BACKENDS[backend].verify_rows(*args)
            for r in np.flatnonzero(share > 0):
                count = int(verified.num_accepted[r])
                assert int(verified.num_sampled[r]) == count + 1
                emitted[count][drafts[r][:count]] += share[r] * emit[r, count]
        return emitted

    def joint(self, context: Prefix, length: int) -> Numbers:
        """[v, .., v]: the target's own law of the next tokens."""
        return self.completed([(context, np.ones(()))], context, length)

    def completed(self, parts: list[tuple[Prefix, Numbers]], context: Prefix, length: int) -> Numbers:
        """The law of `length` tokens: each part [v, .., v] of m of them, continued by the target itself."""
        total = np.zeros((self.v,) * length)
        for start, part in parts:
            for own in np.ndindex(part.shape):
                if part[own] > 0:
                    rest = self._rest(start + own, len(context) + length)
                    total[start[len(context) :] + own] += part[own] * rest
        return total

    def _rest(self, prefix: Prefix, length: int) -> Numbers:
        """[v, .., v]: the target's law of the tokens from a prefix to a length."""
        if len(prefix) == length:
            return np.ones(())
        p = self.p(prefix)
        return np.stack([p[i] * self._rest((*prefix, i), length) for i in range(self.v)])


def distance(a: Numbers, b: Numbers) -> float:
    """Total variation."""
    return float(np.abs(a - b).sum() / 2)


def of_one_step(world: World, backend: str, context: Prefix = ()) -> float:
    """How far the law of K + 1 tokens, after one step, is from the target's."""
    emitted = world.one_step(backend, context)
    law = world.completed([(context, part) for part in emitted], context, world.k + 1)
    return distance(law, world.joint(context, world.k + 1))


def of_two_steps(world: World, backend: str) -> float:
    """The same of 2 K + 2 tokens after two steps: the second starts from whatever the first emits."""
    parts = []
    for first in world.one_step(backend, ()):
        for prefix in np.ndindex(first.shape):
            if first[prefix] > 0:
                parts += [(prefix, first[prefix] * second) for second in world.one_step(backend, prefix)]
    length = 2 * world.k + 2
    return distance(world.completed(parts, (), length), world.joint((), length))


@contextmanager
def tossed(coins: Numbers) -> Iterator[None]:
    """Coins [R, K] of the requests whose seeds are 0 .. R - 1."""

    def coin(seed: NDArray, anchor: NDArray, choice: NDArray, row: NDArray, *, wide: bool = False) -> Numbers:
        seed, row = np.broadcast_arrays(seed, row)
        return coins[seed.astype(np.int64), row.astype(np.int64)]

    # What is drawn is not looked at, and half of the reference's time goes into its noise.
    with mock.patch.object(rng, "coin", coin), mock.patch.object(rng, "gumbel_noise", lambda ids, *_, **__: ids * 0.0):
        yield


def processed(row: NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]) -> Numbers:
    """Section 1 of semantics.md for one row, written down once more."""
    x, f32 = row.copy(), np.float32
    for token in range(len(x)):
        x[token] += f32((params.logit_bias or {}).get(token, 0))
        count = output.count(token)
        if token in prompt or count:
            r = f32(params.repetition_penalty)
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
        x[token] = x[token] - f32(params.frequency_penalty) * f32(count)
        x[token] = x[token] - f32(params.presence_penalty if count else 0)
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            x[token] = -np.inf
    order = sorted(np.flatnonzero(x > -np.inf).tolist(), key=lambda i: (-x[i], i))
    law = np.zeros(len(x))
    if params.temperature == 0:
        law[order[0]] = 1
        return law
    z = (x[order].astype(np.float64) - x[order[0]]) / params.temperature
    n = min(params.top_k if params.top_k > 0 else len(order), len(order))
    if params.min_p > 0:
        n = min(n, int((z >= np.log(params.min_p)).sum()))
    if params.top_p < 1:
        mass = np.exp(z[:n]).cumsum()
        n = int((mass < params.top_p * mass[-1]).sum()) + 1
    kept = np.exp(z[: max(1, n)])
    law[order[: len(kept)]] = kept / kept.sum()
    return law


def tables(kind: str, v: int, seed: int) -> tuple[Callable[[Prefix], Numbers], Callable[[Prefix], Numbers]]:
    """Logits of target and drafter by prefix."""

    @cache
    def both(prefix: Prefix) -> tuple[Numbers, Numbers]:
        random = np.random.default_rng([seed, v, *(1 + i for i in prefix)])
        p, q = (np.round(random.normal(0, 1.5, (2, v)), 3)).astype(np.float32).astype(np.float64)
        if kind == "equal":
            q = p
        elif kind == "zeros":
            p[random.integers(v)] = q[random.integers(v)] = -np.inf
        elif kind == "disjoint":
            half = random.permutation(v)[: v // 2]
            p[half] = -np.inf
            q[np.setdiff1d(np.arange(v), half)] = -np.inf
        elif kind in ("one-hot", "sure"):
            for x in (p, q) if kind == "one-hot" else (q,):
                keep = x[i := random.integers(v)]
                x[:] = -np.inf
                x[i] = keep
        elif kind == "few":
            q[random.permutation(v)[2:]] = -np.inf
        elif kind == "ties":
            p, q = random.integers(0, 2, (2, v)).astype(np.float64)
        elif kind == "opposite":
            q = -p
        elif kind == "far":
            p, q = p + 1000, q - 1000
        elif kind != "random":
            raise ValueError(kind)
        return p, q

    return lambda prefix: both(prefix)[0], lambda prefix: both(prefix)[1]


KINDS = ("random", "equal", "zeros", "disjoint", "one-hot", "sure", "ties", "opposite")


def world(kind: str, v: int, k: int, *, seed: int = 0, ids: tuple[int, ...] | None = None, **kwargs: object) -> World:
    target, drafter = tables(kind, v, seed)
    return World(target, drafter, k, ids or tuple(range(v)), **kwargs)  # type: ignore[arg-type]
