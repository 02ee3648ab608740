"""What the entry of a token in the tables of edits says."""

import triton.language as tl

SEEN, ALLOWED, MASKED, STOPS, BIASED, ENDS_BAD_WORD = (tl.constexpr(1 << bit) for bit in range(6))
COUNT_SHIFT = tl.constexpr(8)
ONE = tl.constexpr(1 << 8)
"""One occurrence in the output; counts are the bits above the flags"""
