"""Wrong kernels of requests' edits; each is seen by the steps of `tests/test_triton_sampler.py`."""

from drawlot.kernels.triton import edit_kernels, ranks
from tests.kernel_mutant import KernelMutant

_LAYS = edit_kernels.lay_over_kernel
ALL = [
    KernelMutant(
        "three tokens of a word alone", _LAYS, "bit3, left = _next_bit(left)", "bit3, left = _next_bit(left * 0)"
    ),
    KernelMutant("drafts touch nothing", _LAYS, "tl.where(word == draft >> 5,", "tl.where(word == -1,"),
    KernelMutant("drafts are not counted", edit_kernels._with_drafts, "(entry | SEEN) + ONE", "(entry | SEEN)"),
    KernelMutant("others than the allowed", _LAYS, "tl.where(only_allowed, 2, 1)", "tl.where(only_allowed, 1, 1)"),
    KernelMutant("stops where they may not", _LAYS, "& too_short)", "& (too_short == 0))"),
    KernelMutant("bad words forgotten", _LAYS, "if num_bad_words != 0:", "if num_bad_words < 0:"),
    KernelMutant("bias forgotten", _LAYS, "if has_bias:", "if num_bad_words < 0:"),
    KernelMutant("the prompt is present", _LAYS, "tl.where(count > 0, presence, 0.0)", "presence"),
    KernelMutant("who edits nothing has another's edits", _LAYS, "tl.where(slot < 0, 0,", "tl.where(slot < -1, 0,"),
    KernelMutant("masks forgotten", _LAYS, "x = tl.where(forbidden, MINUS_INF, x)", "x = x + 0.0"),
    KernelMutant("raw ranks by edited maxima", ranks.count_ranks, "apart = is_edited(rows, row)", "apart = row != row"),
]
