"""Wrong Triton kernels of verification, each a few characters away from the right ones, and worlds that show them."""

from drawlot.kernels.triton import edit_kernels
from drawlot.kernels.triton.verification import (
    acceptance,
    cut,
    draw,
    judge,
    laws,
    leftover,
    requests,
    row_law,
    settle,
    weighed,
)
from tests.kernel_mutant import KernelMutant

OF_STANDARD = [
    KernelMutant("coin above", acceptance.accepts, "coin < threshold", "coin > threshold"),
    KernelMutant("all or nothing", acceptance.accepts, "ratio > 1, 1.0, ratio", "ratio > 1, 1.0, ratio * 0"),
    KernelMutant("root of the ratio", acceptance.accepts, "ratio > 1, 1.0, ratio)", "ratio > 1, 1.0, tl.sqrt(ratio))"),
    KernelMutant("q is one", acceptance.ratio_of_draft, "(mass.to(tl.float64) * q)", "mass.to(tl.float64)"),
    KernelMutant("p without its mass", acceptance.ratio_of_draft, "(mass.to(tl.float64) * q)", "q"),
    KernelMutant(
        "ratio upside down",
        acceptance.ratio_of_draft,
        "1.0, weight) / (mass.to(tl.float64) * q)",
        "1.0, mass.to(tl.float64) * q) / weight",
    ),
    KernelMutant("impossible drafts pass", acceptance.ratio_of_draft, "is_zero, 0.0,", "is_zero, 1.0,", "zeros"),
    KernelMutant(
        "draft of the row before",
        judge.judge_row,
        "tl.arange(0, COLUMNS) == column, tokens",
        "tl.arange(0, COLUMNS) == tl.maximum(column - 1, 0), tokens",
        "two drafts",
    ),
    KernelMutant(
        "q of the first draft",
        judge.judge_row,
        "state * drafts.lines + column, -1",
        "state * drafts.lines, -1",
        "two drafts",
    ),
    KernelMutant(
        "q of another request",
        judge.judge_row,
        "state * drafts.lines + column, -1",
        "request * drafts.lines + column, -1",
    ),
    KernelMutant(
        "q at the draft without its factor",
        row_law.finish_draft_law,
        "q = tl.exp(q - shift) * factor",
        "q = tl.exp(q - shift)",
    ),
    KernelMutant(
        "coins of the first row for all",
        laws.law_kernel,
        "coin_of((seed, anchor, choice, column), WIDE)",
        "coin_of((seed, anchor, choice, column * 0), WIDE)",
        "two drafts",
    ),
    KernelMutant(
        "counts all that pass",
        settle.settle,
        "tl.min(tl.where((column < n) & hit, n, column))",
        "tl.sum(((column < n) & hit).to(tl.int32))",
        "two drafts",
    ),
    KernelMutant(
        "one fewer is accepted",
        settle.settle,
        "tl.min(tl.where((column < n) & hit, n, column))",
        "tl.maximum(tl.min(tl.where((column < n) & hit, n, column)) - 1, 0)",
    ),
    KernelMutant(
        "token of the row after",
        settle.settle,
        "tl.where((column == accepted) & (status == 0), own, -1)",
        "tl.where((column == tl.minimum(accepted + 1, n)) & (status == 0), own, -1)",
        "two drafts",
    ),
    KernelMutant("residual without q", leftover.leftover_of, "prefix) - q", "prefix)"),
    KernelMutant(
        "residual of both sides",
        leftover.leftover_of,
        "tl.maximum(weight * (per_mass * prefix) - q, 0.0, propagate_nan=tl.PropagateNan.ALL)",
        "tl.abs(weight * (per_mass * prefix) - q)",
    ),
    KernelMutant("residual of twice p", leftover.leftover_of, "(weight * (", "(2 * weight * ("),
    KernelMutant(
        "residual of q without its factor",
        leftover.leftover_of,
        "tl.exp2((draft_logits - shift) * LOG2_E) * factor",
        "tl.exp2((draft_logits - shift) * LOG2_E)",
    ),
    KernelMutant(
        "residual of the first line of q",
        leftover.load_draft_logits,
        "tl.maximum(law[0], 0), ids",
        "law[0] * 0 + drafts.lines, ids",
        "two drafts",
    ),
    KernelMutant("no residual", draw.draw_from_tile, "tl.where(from_q, log_left, z)", "tl.where(from_q, z, z)"),
]
OF_FORMS = [
    KernelMutant("point mass is not left out", draw.draw_from_tile, "& (ids != without)", "& (ids >= 0)", "point"),
    KernelMutant(
        "point mass of the token after",
        draw.draw,
        "residual & (law[0] < 0), law[1], -1)",
        "residual & (law[0] < 0), law[1] + 1, -1)",
        "point",
    ),
    KernelMutant(
        "half a point mass", leftover.leftover_of, "ids == draft, 1.0, 0.0", "ids == draft, 0.1, 0.0", "filtered point"
    ),
    KernelMutant(
        "few tokens: q of the token before",
        leftover._sparse_law,
        "tl.where(ids == token",
        "tl.where(ids == token + 1",
        "sparse",
    ),
    KernelMutant(
        "few tokens: without the sum",
        leftover._sparse_law,
        "tl.exp2((x - shift) * LOG2_E) * factor",
        "tl.exp2((x - shift) * LOG2_E)",
        "sparse",
    ),
    KernelMutant(
        "few tokens: at the draft without the sum",
        judge._put_draft_law,
        "tl.exp(at_draft.to(tl.float64) - shift) * factor",
        "tl.exp(at_draft.to(tl.float64) - shift)",
        "sparse",
    ),
    KernelMutant(
        "few tokens: q of what is not listed",
        judge._put_draft_law,
        "tl.where(of_draft > 0, at_draft, 0.0)",
        "at_draft * 0 + 1",
        "sparse",
    ),
    KernelMutant(
        "log-sum-exp of the first draft",
        judge._put_draft_law,
        "state * K + (line - state * drafts.lines)",
        "state * K",
        "log-sum-exp",
    ),
]
OF_PARAMETERS = [
    KernelMutant("ratio without temperature", acceptance.ratio_of_draft, "* per_temperature", "* 1.0", "warm"),
    KernelMutant(
        "residual without temperature", leftover.leftover_of, "(x - maximum) * scale", "(x - maximum) * LOG2_E", "warm"
    ),
    KernelMutant(
        "filtered drafts pass",
        acceptance.ratio_of_draft,
        "is_kept(x, draft, cut_value, cut_id) & (draft >= 0)",
        "(draft >= 0)",
        "filtered",
    ),
    KernelMutant(
        "no residual of listed tokens",
        draw.draw_from_list,
        "    if residual:",
        "    if residual & (temperature < 0):",
        "filtered",
    ),
    KernelMutant(
        "mass of what no filter drops",
        cut.cut_row,
        "mass = of_fixed(total)",
        "mass = 2 * of_fixed(total)",
        "filtered",
    ),
    KernelMutant("one more than the filters keep", cut.cut_row, "rank == num_kept - 1", "rank == num_kept", "filtered"),
    KernelMutant(
        "penalties without drafts",
        edit_kernels._with_drafts,
        "while back < num_drafts",
        "while back < num_drafts * 0",
        "penalised",
    ),
    KernelMutant(
        "penalties without the last draft",
        edit_kernels._with_drafts,
        "while back < num_drafts",
        "while back < num_drafts - 1",
        "penalised",
    ),
    KernelMutant("refused drafts are padding", requests.load_drafts, "token == -1", "token < 0", "refused"),
    KernelMutant(
        "padding is a draft", requests.load_drafts, "token == -1, column, K", "token == -1, K, K", "early end"
    ),
]
OF_BLOCK = [
    KernelMutant(
        "block: P above one",
        acceptance.next_prefix,
        "product > 1, 1.0, product",
        "product > 1, product, product",
        "block of two",
    ),
    KernelMutant(
        "block: P of the row before",
        acceptance.accept_block,
        "prefix = next_prefix(prefix, ratio)",
        "prefix = next_prefix(prefix, ratio) if i > 1 else prefix",
        "block",
    ),
    KernelMutant("block: the ratio alone", acceptance.next_prefix, "2.0, prefix * ratio", "2.0, ratio", "block"),
    KernelMutant(
        "block: coins of the row itself",
        acceptance.accept_block,
        "coins + first + (i - 1)",
        "coins + first + i",
        "block",
    ),
    KernelMutant("block: accepted by P alone", acceptance.accept_block, "(prefix == 1)", "(prefix >= 0)", "block"),
    KernelMutant(
        "block: P = 1 is not sure", acceptance.accept_block, "(is_last | (", "((is_last & (i < 0)) | (", "block"
    ),
    KernelMutant(
        "block: drawn by the law of the first row",
        laws.law_kernel,
        "law_of_row(judged, drawn_row, tl.load(judged.lines + drawn_row)",
        "law_of_row(judged, first, tl.load(judged.lines + first)",
        "block of two",
    ),
    KernelMutant(
        "block: drawn without a residual",
        laws.law_kernel,
        "first + lowest, lowest < given",
        "first + lowest, lowest < 0",
        "block",
    ),
    KernelMutant(
        "block: nothing is weighed",
        acceptance.accept_block,
        "weighed | (1 << i)",
        "weighed | (tl.maximum(num_drafts, 0) >> 30)",
        "block",
    ),
    KernelMutant(
        "block: another row is weighed",
        acceptance.accept_block,
        "weighed | (1 << i)",
        "weighed | (1 << (i - 1))",
        "block",
    ),
    KernelMutant(
        "block: the first that is accepted",
        acceptance.accept_block,
        "lowest = tl.where(exists & (coin < h), i, lowest)",
        "lowest += (exists & (coin < h)).to(tl.int32)",
        "block point",
    ),
    KernelMutant(
        "block: what the draft has is left",
        acceptance.accept_block,
        "prefix * (1 - ratio)",
        "prefix * ratio",
        "block point",
    ),
    KernelMutant(
        "block: all is left", acceptance.accept_block, "rest = left + 1 - prefix", "rest = left + 1", "block point"
    ),
    KernelMutant(
        "block: all is left of a weighed row",
        weighed.settle_weighed_kernel,
        "rest = left + 1 - prefix",
        "rest = left + 1",
        "block",
    ),
    KernelMutant(
        "block: weighed rows by P",
        weighed.settle_weighed_kernel,
        "tl.where(rest == 0, 1.0, left / rest)",
        "prefix",
        "block",
    ),
    KernelMutant(
        "block: weighed rows are not accepted",
        weighed.settle_weighed_kernel,
        "accepts = coin < ",
        "accepts = 2 * coin + 2 < ",
        "block",
    ),
    KernelMutant(
        "block: weighed rows toss another coin",
        weighed.settle_weighed_kernel,
        "judged.coins + row - 1",
        "judged.coins + row",
        "block",
    ),
    KernelMutant(
        "block: token of the lowest row",
        weighed.settle_weighed_kernel,
        "row = first + accepted",
        "row = first + lowest",
        "block",
    ),
    KernelMutant(
        "block: weighed by the law alone",
        weighed.weigh_kernel,
        "law = with_prefix(law, ",
        "_unused = with_prefix(law, ",
        "block",
    ),
    KernelMutant(
        "block: residual of the row alone",
        weighed.settle_weighed_kernel,
        "prefix = prefixes_of(judged, first, accepted, K).to(tl.float32)",
        "prefix = prefixes_of(judged, first, accepted * 0, K).to(tl.float32)",
        "block, few",
    ),
    KernelMutant(
        "block: residual of q of the row before",
        weighed.settle_weighed_kernel,
        "state * step.drafts.lines + accepted",
        "state * step.drafts.lines + accepted - 1",
        "block",
    ),
    KernelMutant(
        "block: weighed by q of the row before",
        weighed._row_of,
        "line + column, 0",
        "line + column - 1, 0",
        "block",
    ),
]
# A coin next to a threshold shows it, a law does not.
INCLUSIVE = KernelMutant("inclusive comparison", acceptance.accepts, "coin < threshold", "coin <= threshold")
# The same verification in other words: nothing may kill it.
THE_SAME = [
    KernelMutant("equal: thresholds above one", acceptance.accepts, "ratio > 1, 1.0, ratio", "ratio > 2, 1.0, ratio"),
    KernelMutant(
        "equal: more is weighed",
        acceptance.accept_block,
        "exists & below & (is_last == 0), weighed",
        "exists & (is_last == 0), weighed",
        "block",
    ),
    KernelMutant(
        "equal: residual by half",
        leftover.leftover_of,
        "return tl.maximum(",
        "return 0.5 * tl.maximum(",
    ),
]
ALL = [*OF_STANDARD, *OF_FORMS, *OF_PARAMETERS, *OF_BLOCK]
