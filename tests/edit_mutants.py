"""Wrong kernels of requests' edits and columns of logprobs; each is seen by `tests/test_triton_sampler.py`."""

from drawlot.kernels.triton import column_values, edit_kernels, finish, ranks, scan
from tests.kernel_mutant import KernelMutant

_BEGINS, _LAYS = edit_kernels.begin_to_lay, edit_kernels.lay_next
ALL = [
    KernelMutant(
        "the first token of a strand again",
        scan._edited,
        "if turns > 0:",
        "if turns < 0:",
    ),
    KernelMutant("one token of a strand alone", scan._edited, "left &= left - 1", "left *= 0"),
    KernelMutant("not all turns", edit_kernels.most_left, "num_bits(left)", "num_bits(left) & 1"),
    KernelMutant(
        "drafts touch nothing", edit_kernels.begin_to_lay, "tl.where(word == draft >> 5,", "tl.where(word == -1,"
    ),
    KernelMutant("drafts are not counted", edit_kernels._with_drafts, "(entry | SEEN) + ONE", "(entry | SEEN)"),
    KernelMutant("others than the allowed", _BEGINS, "!= 0, 2, 1), left", "!= 0, 1, 1), left"),
    KernelMutant("stops where they may not", _LAYS, "& too_short)", "& (too_short == 0))"),
    KernelMutant("stops forgotten", _LAYS, "(flags & STOPS) != 0:", "(flags & STOPS) < 0:"),
    KernelMutant("the allowed are all", _LAYS, "(flags & ALLOWED) != 0:", "(flags & ALLOWED) < 0:"),
    KernelMutant("bad words forgotten", _LAYS, "(flags & ENDS_BAD_WORD) != 0:", "(flags & ENDS_BAD_WORD) < 0:"),
    KernelMutant("bias forgotten", _LAYS, "(flags & BIASED) != 0:", "(flags & BIASED) < 0:"),
    KernelMutant("the prompt is present", edit_kernels.penalised, "tl.where(count > 0, presence, 0.0)", "presence"),
    KernelMutant("no quotient below 1", edit_kernels.penalised, "tl.maximum(x, -1.0)", "tl.maximum(x, 1.0)"),
    KernelMutant(
        "who edits nothing has another's edits",
        scan.scan_block,
        "if block == 0:",
        "if (block == 0) & (slot >= 0):",
    ),
    KernelMutant("what request i asks, in row i", scan.scan_block, "if state != row:", "if state < -1:"),
    KernelMutant("strands of the first slice", scan._edited, "slice * GROUP + neighbour", "slice * 0 + neighbour"),
    KernelMutant("a thread's strands alike", edit_kernels.begin_to_lay, "thread * SIDE + 1", "thread * SIDE"),
    KernelMutant("masks forgotten", _LAYS, "forbidden & (is_bad(x) == 0)", "is_bad(x)"),
]
OF_BOUNDS = [
    KernelMutant("less than what a tile may weigh", scan._bounds_of_sums, "0.0, 128.0", "0.0, 0.05"),
    KernelMutant(
        "bounds for who needs sums", scan._put_laid_tiles, "bounds_do = needs_sums == 0", "bounds_do = row >= 0"
    ),
]
OF_LISTS = [
    KernelMutant(
        "raw ranks by edited maxima",
        finish.finish_kernel,
        "raw_maxima,\n                raw_of_token,",
        "maxima,\n                raw_of_token,",
    ),
    KernelMutant("given ids forgotten", column_values.num_top_of, "tl.where(first >= 0, ROOM + 1, num_top)", "num_top"),
    KernelMutant("top tokens as they lie", column_values.put_columns, "ids + 1 + rank, tl", "ids + 1 + rank * 0, tl"),
    KernelMutant("as many as the list has", column_values.put_columns, "rank < num_top", "rank > -1"),
    KernelMutant("top tokens forgotten", column_values.wants_first, "has_column & (num_top == 0) &", "has_column &"),
    KernelMutant("rank of nobody", column_values.put_result, "tl.where(is_told, ALL_COLUMNS, rank)", "rank * 0 + 2"),
]
RANKED_BY_ALL = KernelMutant(
    "raw ranks by edited maxima", ranks.count_ranks, "apart = is_edited(rows, row)", "apart = row != row"
)
