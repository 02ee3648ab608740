"""Wrong verifications, each a few characters away from the real one: the tests have to see every one of them."""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import NamedTuple

from drawlot import rng
from drawlot.kernels import drafts
from drawlot.kernels.reference import verify as reference
from drawlot.kernels.reference.verification import block, own_token, standard, step
from drawlot.kernels.torch import verify as fast
from drawlot.kernels.torch.verification import acceptance
from drawlot.kernels.torch.verification.draft_laws import DraftLaws
from drawlot.kernels.torch.verification.steps import Steps
from drawlot.kernels.torch.verification.target_laws import Residuals, TargetLaws
from drawlot.sampling.edits import EditStates
from drawlot.verification import DraftSampler, RejectionSampler


class Mutant(NamedTuple):
    """Puts `new` in the place of `old`, which stands once in the source of a function."""

    name: str
    function: object
    old: str
    new: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Whoever calls the function, under whatever name, calls the mutant."""
        function = bare(self.function)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, (self.name, source.count(self.old))
        names: dict[str, object] = {}
        exec(
            "from __future__ import annotations\n" + source.replace(self.old, self.new),
            dict(function.__globals__),
            names,
        )
        right, function.__code__ = function.__code__, bare(names[function.__name__]).__code__
        try:
            yield
        finally:
            function.__code__ = right


def bare(function: object) -> FunctionType:
    """The function itself, under what decorates it."""
    if isinstance(function, property):
        function = function.fget
    function = inspect.unwrap(getattr(function, "__func__", function))
    assert isinstance(function, FunctionType)
    return function


# Wrong laws: the exact sum kills them.
OF_BOTH = [
    Mutant("refused drafts are padding", drafts.Drafts.num_drafts, "self.token_ids != PADDING", "self.token_ids >= 0"),
    Mutant("rejection where drafts end", drafts.Drafts.num_drafts, "(self.token_ids != PADDING) & ", ""),
    Mutant("penalties without drafts", EditStates._seen, "[index], drafts, local)", "[index], drafts, local * 0)"),
    Mutant("penalties with the draft judged", EditStates._seen, "(index - local + 1)", "(index - local + 2)"),
]
OF_REFERENCE = [
    Mutant("p of the row before", standard.ratio, "float(step.p[j, d] / ", "float(step.p[max(j - 1, 0), d] / "),
    Mutant("p of the row after", standard.ratio, "float(step.p[j, d] / ", "float(step.p[j + 1, d] / "),
    Mutant("q of the draft before", standard.ratio, "step.q[j, d]", "step.q[max(j - 1, 0), d]"),
    Mutant("q of the likeliest token", standard.ratio, "step.q[j, d]", "step.q[j].max()"),
    Mutant(
        "root of the ratio",
        standard.ratio,
        "float(step.p[j, d] / step.q[j, d])",
        "float(step.p[j, d] / step.q[j, d]) ** 0.5",
    ),
    Mutant("ratio upside down", standard.ratio, "step.p[j, d] / step.q[j, d]", "step.q[j, d] / step.p[j, d]"),
    Mutant(
        "ratio of half precision",
        standard.ratio,
        "step.p[j, d] / step.q[j, d]",
        "np.float16(step.p[j, d]) / step.q[j, d]",
    ),
    Mutant("q is one", standard.ratio, "step.p[j, d] / step.q[j, d]", "step.p[j, d]"),
    Mutant("impossible drafts pass", standard.ratio, "return 0.0", "return 1.0"),
    Mutant("all or nothing", standard.thresholds, "min_one(ratio(step, j))", "float(ratio(step, j) >= 1)"),
    Mutant(
        "likeliest drafts pass",
        standard.thresholds,
        "min_one(ratio(step, j))",
        "float(step.p[j].argmax() == step.drafts[j])",
    ),
    Mutant(
        "coins of eight bits",
        standard.thresholds,
        "min_one(ratio(step, j))",
        "np.ceil(min_one(ratio(step, j)) * 256) / 256",
    ),
    Mutant("inclusive coin", standard.num_accepted, "coin < threshold", "coin <= threshold"),
    Mutant("coin above", standard.num_accepted, "not coin < threshold", "coin < threshold"),
    Mutant("counts all that pass", standard.num_accepted, "return j", "return int((coins < thresholds).sum())"),
    Mutant("residual of the row alone", standard.residual, "step.p[j] - step.q[j]", "step.p[j]"),
    Mutant(
        "residual is p without the draft",
        standard.residual,
        "step.p[j] - step.q[j]",
        "step.p[j] * (np.arange(len(step.p[j])) != step.drafts[j])",
    ),
    Mutant("residual of the draft before", standard.residual, "step.q[j]", "step.q[max(j - 1, 0)]"),
    Mutant("residual of the row after", standard.residual, "step.p[j]", "step.p[j + 1]"),
    Mutant(
        "residual of both sides",
        standard.residual,
        "np.maximum(step.p[j] - step.q[j], 0)",
        "np.abs(step.p[j] - step.q[j])",
    ),
    Mutant("residual of twice p", standard.residual, "step.p[j] - ", "2 * step.p[j] - "),
    Mutant("no residual", reference.residual, "0 < left.sum() < np.inf", "False"),
    Mutant(
        "block: P above one", block.prefix_masses, "min_one(masses[-1] * ratio(step, j))", "masses[-1] * ratio(step, j)"
    ),
    Mutant("block: P forgets", block.prefix_masses, "masses[-1] * ratio", "ratio"),
    Mutant(
        "block: coins of single drafts",
        block.thresholds,
        "residual(step, i).sum() / rest if",
        "min_one(ratio(step, i - 1)) if",
    ),
    Mutant("block: rest without P", block.rests, " + 1 - masses[i]", " + 1"),
    Mutant("block: last coin of the draft before", block.thresholds, "masses[n]]", "masses[n - 1]]"),
    Mutant("block: weight of the row before", block.thresholds, "residual(step, i)", "residual(step, i - 1)"),
    Mutant(
        "block: up to the first miss",
        block.num_accepted,
        "return max(below, default=0)",
        "return next((i for i in range(len(coins)) if i + 1 not in below), len(coins))",
    ),
    Mutant("block: shortest", block.num_accepted, "max(below", "min(below"),
    Mutant("block: inclusive coin", block.num_accepted, "coins[i - 1] < ", "coins[i - 1] <= "),
    Mutant("block: coin of the row after", block.num_accepted, "coins[i - 1]", "coins[min(i, len(coins) - 1)]"),
    Mutant("block: residual without P", block.residual, "prefix_masses(step)[i] * step.p[i]", "step.p[i]"),
    Mutant("block: residual of the draft before", block.residual, "step.q[i]", "step.q[max(i - 1, 0)]"),
    Mutant(
        "bonus from the row before",
        step.step_of,
        "_law(row, v) for row in kept",
        "_law(row, v) for row in [*kept[:-1], kept[max(0, n - 1)]]",
    ),
    Mutant(
        "q of another request", step._draft_law, "int(drafts.state_rows[r])", "int(drafts.state_rows[max(0, r - 1)])"
    ),
    Mutant("q by place in the batch", step._draft_law, "int(drafts.state_rows[r])", "r + 1"),
    Mutant(
        "q of all columns",
        step._draft_law,
        "log_sum_exp(z)",
        "log_sum_exp(drafts.logits[s, j].double().numpy() - logits.max())",
    ),
    Mutant("log-sum-exp of the first draft", step._draft_law, "float(drafts.lse[s, j])", "float(drafts.lse[s, 0])"),
    Mutant(
        "unused cells of sparse q",
        step._draft_law,
        "logits = ids[ids != PADDING], logits[ids != PADDING]",
        "logits = np.abs(ids), logits",
    ),
    Mutant("p without its sum", step._law, "np.exp(kept.z - log_sum_exp(kept.z))", "np.exp(kept.z)"),
]
OF_TORCH = [
    Mutant("ratio upside down", acceptance.ratios, "0, p / q", "0, q / p"),
    Mutant("root of the ratio", acceptance.ratios, "0, p / q", "0, np.sqrt(p / q)"),
    Mutant("ratio of half precision", acceptance.ratios, "0, p / q", "0, p.astype(np.float16) / q"),
    Mutant("impossible drafts pass", acceptance.ratios, "p == 0, 0,", "p == 0, 1,"),
    Mutant(
        "block: P above one",
        acceptance.prefix_masses,
        "np.minimum(1, masses[:, i] * ratio[:, i])",
        "masses[:, i] * ratio[:, i]",
    ),
    Mutant("block: P forgets", acceptance.prefix_masses, "1, masses[:, i] * ratio", "1, ratio"),
    Mutant("block: rest without P", acceptance.block_thresholds, "left + 1 - masses", "left + 1"),
    Mutant("block: coins of whole prefixes", acceptance.block_thresholds, "left / rest", "masses"),
    Mutant("block: last coin as the others", acceptance.block_thresholds, "np.where(last, masses, h)", "h"),
    Mutant(
        "block: last coin at the width",
        acceptance.block_thresholds,
        "== num_drafts[:, None]",
        "== masses.shape[1] - 1 + 0 * num_drafts[:, None]",
    ),
    Mutant("counts all that pass", acceptance.before_first_miss, ".cumprod(1)", ""),
    Mutant(
        "block: counts all that pass",
        acceptance.longest,
        "(hit * np.arange(1, hit.shape[1] + 1)).max(1, initial=0)",
        "hit.sum(1)",
    ),
    Mutant("inclusive coin", fast.num_accepted, "coins < judged", "coins <= judged"),
    Mutant(
        "block: up to the first miss", fast.num_accepted, "acceptance.longest(hit)", "acceptance.before_first_miss(hit)"
    ),
    Mutant("longest for all", fast.num_accepted, "acceptance.before_first_miss(hit)", "acceptance.longest(hit)"),
    Mutant(
        "p of the row before",
        fast._thresholds,
        "steps.first[requests] + columns, tokens",
        "steps.first[requests] + np.maximum(columns - 1, 0), tokens",
    ),
    Mutant(
        "q of the draft before", fast._thresholds, "q.at(requests, columns", "q.at(requests, np.maximum(columns - 1, 0)"
    ),
    Mutant(
        "coins of eight bits", fast._thresholds, "np.minimum(1, ratio)", "np.ceil(np.minimum(1, ratio) * 256) / 256"
    ),
    Mutant("all or nothing", fast._thresholds, "np.minimum(1, ratio)", "np.floor(np.minimum(1, ratio))"),
    Mutant("block as standard", fast._thresholds, "if block.any():", "if False:"),
    Mutant(
        "residual of the row before",
        Residuals.of,
        "steps.first[requests] + columns, ",
        "steps.first[requests] + np.maximum(columns - 1, 0), ",
    ),
    Mutant("residual with the next factor", Residuals.of, "masses[requests, columns]", "masses[requests, columns + 1]"),
    Mutant("p without its sum", TargetLaws.at, "np.exp(z) / self.drawn.mass[index]", "np.exp(z)"),
    Mutant("p without temperature", TargetLaws.at, " / self.rows.temperature[index]", ""),
    Mutant("p without filters", TargetLaws.at, "((x > cut.value) | ((x == cut.value) & (tokens <= cut.id)))", "True"),
    Mutant("p without the last kept token", TargetLaws.at, "tokens <= cut.id", "tokens < cut.id"),
    Mutant("residual without sum", TargetLaws.weights, "factor[part] / self.drawn.mass[own]", "factor[part]"),
    Mutant(
        "residual without temperature", TargetLaws.weights, "1 / rows.temperature[own]", "1 + 0 * rows.temperature[own]"
    ),
    Mutant(
        "residual without filters",
        TargetLaws.weights,
        "(values > value) | ((values == value) & (ids <= last))",
        "values > -np.inf",
    ),
    Mutant("residual without the last kept token", TargetLaws.weights, "ids <= last", "ids < last"),
    Mutant(
        "block: residual mass with the draft",
        TargetLaws.residual_masses,
        "which.factor * (1 - ",
        "which.factor * (1 - 0 * ",
    ),
    Mutant("draft stays in the residual of a point mass", DraftLaws.subtract, "[named]] = 0", "[named]] += 0"),
    Mutant("residual of the row alone", DraftLaws.subtract, "-= q", "-= 0 * q"),
    Mutant("residual of both sides", DraftLaws.subtract, "weights.clamp_(min=0)", "weights.abs_()"),
    Mutant(
        "residual of sparse q at its first token",
        DraftLaws.subtract,
        "torch.where(named, ids, 0)",
        "torch.where(named, ids[:, :1], 0)",
    ),
    Mutant("q by place in the batch", DraftLaws._lines, "self.state_rows[requests]", "1 + requests"),
    Mutant("q of the first draft", DraftLaws.at, "self.logits[s, j, d", "self.logits[s, 0 * j, d"),
    Mutant("log-sum-exp of the first draft", DraftLaws.of, "drafts.lse[s, j]", "drafts.lse[s, 0 * j]"),
    Mutant(
        "log-sum-exp of float32",
        DraftLaws.at,
        "z - self.log_sum[requests, columns]",
        "on_host(at.double()) - (self.shift + self.log_sum).astype(np.float32)[requests, columns]",
    ),
    Mutant("log-sum-exp is the maximum", DraftLaws.of, "np.log(on_host(torch.cat(sums)))", "0"),
    Mutant("unused cells of sparse q", DraftLaws._logits, "== PADDING, -torch.inf", "< -1, -torch.inf"),
]

# Right laws, drawn by the wrong noise or not drawn from: replaying the noise kills them.
NOISE_OF_REFERENCE = [
    Mutant("one coin for all drafts", reference.coins, "dtype=np.uint64)", "dtype=np.uint64) * np.uint64(0)"),
    Mutant("coins of 32 bits", reference.coins, "wide=wide", "wide=False"),
    Mutant(
        "coins of the residual",
        rng.coin,
        "Stream.ACCEPT + _WIDE if wide else Stream.ACCEPT",
        "(Stream.RESIDUAL_TOKEN + _WIDE if wide else Stream.RESIDUAL_TOKEN)",
    ),
    Mutant("residual of 32 bits", reference._verify, "RESIDUAL, wide)", "RESIDUAL, False)"),
    Mutant("residual on bonus noise", reference._verify, "RESIDUAL, wide)", "BONUS, wide)"),
    Mutant("residual on the noise of row 0", reference._verify, "step.key._replace(row=count)", "step.key"),
    Mutant("residual drawn by weights", reference._verify, "np.log(left[ids])", "left[ids]"),
    Mutant("own draw where there is a residual", reference._verify, "if left is None:", "if True:"),
    Mutant("bonus of 32 bits", reference.own_draw, "BONUS, wide)", "BONUS, False)"),
    Mutant("bonus on target noise", reference.own_draw, "BONUS, wide)", "TARGET, wide)"),
    Mutant("bonus on the noise of row 0", reference.own_draw, "row=j), BONUS", "row=0), BONUS"),
    Mutant("coupled at the anchor", reference.own_draw, "step.key.position + j", "step.key.position"),
    Mutant("coupled: compares with the first token", own_token.num_accepted, "tokens[j]", "tokens[0]"),
]
NOISE_OF_TORCH = [
    Mutant("one coin for all drafts", fast.coins, "dtype=np.uint64)", "dtype=np.uint64) * np.uint64(0)"),
    Mutant("coins of 32 bits", fast.coins, "wide=wide", "wide=False"),
    Mutant(
        "coins of the residual",
        rng.coin,
        "Stream.ACCEPT + _WIDE if wide else Stream.ACCEPT",
        "(Stream.RESIDUAL_TOKEN + _WIDE if wide else Stream.RESIDUAL_TOKEN)",
    ),
    Mutant(
        "residual of 32 bits", fast._verify_chunk, "NoiseKeys.of(params, wide=wide)", "NoiseKeys.of(params, wide=False)"
    ),
    Mutant("residual on bonus noise", fast._draw_residuals, "RESIDUAL[1])", "BONUS[1])"),
    Mutant(
        "residual on the noise of row 0",
        fast._verify_chunk,
        ".pick(rejected.rows)",
        ".pick(steps.first[rejected.requests])",
    ),
    Mutant("residual of the row after", fast._verify_chunk, "columns[:-1] == accepted", "columns[:-1] == 1 + accepted"),
    Mutant("tiles and tokens on one noise", fast._draw_residuals, "RESIDUAL[0])", "RESIDUAL[1])"),
    Mutant("bonus on target noise", fast.own_draws, "(~steps.ordinary, BONUS)", "(~steps.ordinary, TARGET)"),
    Mutant("coupled on bonus noise", fast.own_draws, "(steps.ordinary, TARGET)", "(steps.ordinary, BONUS)"),
    Mutant("bonus on the noise of row 0", fast.own_keys, "torch.where(at, 0, params.row)", "params.row * 0"),
    Mutant("coupled at the anchor", fast.own_keys, "params.position + params.row", "params.position"),
    Mutant(
        "bonus row of the draft before",
        fast._verify_chunk,
        "last_rows = steps.first + accepted",
        "last_rows = steps.first + np.maximum(accepted - 1, 0)",
    ),
    Mutant(
        "coupled: compares with the row before",
        fast.num_accepted,
        "drawn.tokens[steps.rows[:, :-1]]",
        "drawn.tokens[steps.rows[:, :1]]",
    ),
    Mutant(
        "positions of rows for the anchor",
        RejectionSampler.__call__,
        "rows.positions - rows.local_positions",
        "rows.positions",
    ),
    Mutant("row 0 for all rows", RejectionSampler.__call__, "row=rows.local_positions", "row=rows.local_positions * 0"),
]

# Every draw by its law, but not fresh: many sequences kill them.
REUSED = [
    Mutant("one coin for all drafts", fast.coins, "choice, columns, wide", "choice, columns * np.uint64(0), wide"),
    Mutant(
        "coins by position",
        fast.coins,
        "anchor, choice, columns, wide",
        "anchor + columns, choice, columns * np.uint64(0), wide",
    ),
    Mutant("the same coins in all steps", fast.coins, "(seed, anchor, choice", "(seed, anchor * np.uint64(0), choice"),
    Mutant("the same coins for all seeds", fast.coins, "(seed, anchor, choice", "(seed * np.uint64(0), anchor, choice"),
    Mutant(
        "the same coins for all choices",
        fast.coins,
        "anchor, choice, columns, wide",
        "anchor, choice * np.uint64(0), columns, wide",
    ),
    Mutant(
        "coins of drafting", rng.coin, "Stream.ACCEPT + _WIDE if wide else Stream.ACCEPT", "int(Stream.DRAFT_TOKEN)"
    ),
    Mutant("residual on drafting noise", fast._draw_residuals, "RESIDUAL[1])", "rng.Stream.DRAFT_TOKEN)"),
    Mutant("residual on the coin", fast._draw_residuals, "RESIDUAL[1])", "rng.Stream.ACCEPT)"),
    Mutant(
        "residual on one row of noise for all steps", fast._draw_residuals, "keys.pick(index)", "keys.pick(index * 0)"
    ),
    Mutant(
        "one noise for the drafts of a step",
        DraftSampler._params,
        "torch.full_like(params.row, step)",
        "torch.zeros_like(params.row)",
    ),
    Mutant(
        "the same drafting noise in all steps",
        DraftSampler._params,
        "params._replace(row=",
        "params._replace(position=params.position * 0, row=",
    ),
    Mutant(
        "drafts without temperature",
        DraftSampler.draw,
        "self._logits[lines, step] = weights",
        "self._logits[lines, step] = logits",
    ),
]

# The same verification in other words: nothing may kill it.
SAME_OF_REFERENCE = [
    Mutant("equal: thresholds above one", standard.thresholds, "min_one(ratio(step, j))", "ratio(step, j)"),
    Mutant("equal: nothing over nothing", block.thresholds, "if rest != 0 else 1.0", "if rest != 0 else 0.0"),
    Mutant(
        "equal: residual by half",
        standard.residual,
        "np.maximum(step.p[j] - step.q[j], 0)",
        "np.maximum(step.p[j] - step.q[j], 0) / 2",
    ),
]
SAME_OF_TORCH = [
    Mutant(
        "equal: greedy rows toss coins",
        Steps.compares,
        "self.greedy & (self.method != Method.SYNTHETIC)",
        "self.greedy & False",
    ),
    Mutant("equal: thresholds above one", fast._thresholds, "np.minimum(1, ratio)", "ratio + 0"),
]
