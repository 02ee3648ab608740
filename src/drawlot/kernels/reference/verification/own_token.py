"""Rows that draw for themselves: greedy ones, and `coupled`. A draft is accepted if it is the token drawn."""

from collections.abc import Sequence


def num_accepted(tokens: Sequence[int], drafts: Sequence[int]) -> int:
    """The drafts before the first that differs from the token of its row."""
    for j, draft in enumerate(drafts):
        if draft != tokens[j]:
            return j
    return len(drafts)
