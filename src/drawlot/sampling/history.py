"""The tokens of the requests whose parameters look back: prompt and output, in rows of a table that grows on demand."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_FIRST_CAPACITY = 256


class TokensSeen(NamedTuple):
    """What precedes each of E rows of logits."""

    tokens: Tensor
    """int64 [E, L]: prompt, output, then drafts before the row"""
    length: Tensor
    """int64 [E]: how many of them are valid"""
    prompt_length: Tensor
    """int64 [E]"""


class TokenHistory:
    """Only requests that need it own a slot, so memory is proportional to what requests use."""

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        self.device = device
        self._slot_of = torch.full((max_num_reqs,), -1, dtype=torch.int64, device=device)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._tokens = torch.zeros((0, _FIRST_CAPACITY), dtype=torch.int64, device=device)
        self._length = torch.zeros(0, dtype=torch.int64, device=device)
        self._prompt_length = torch.zeros(0, dtype=torch.int64, device=device)
        # No length is above it; kept on the host so that a commit need not wait for the device.
        self._longest = 0

    def add_request(self, req_idx: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Give the request a slot that holds its tokens so far."""
        tokens = torch.tensor([*prompt, *output], dtype=torch.int64, device=self.device)
        self._longest = max(self._longest, len(tokens))
        self._make_room()
        if not self._free:
            self._add_slots()
        slot = self._free.pop()
        self._slots[req_idx] = slot
        self._slot_of[req_idx] = slot
        self._tokens[slot, : len(tokens)] = tokens
        self._length[slot] = len(tokens)
        self._prompt_length[slot] = len(prompt)

    def remove_request(self, req_idx: int) -> None:
        """Free the request's slot, if it has one."""
        slot = self._slots.pop(req_idx, None)
        if slot is not None:
            self._slot_of[req_idx] = -1
            self._length[slot] = 0
            self._free.append(slot)

    def commit(self, idx_mapping: Tensor, token_ids: Tensor, num_sampled: Tensor) -> None:
        """Append the first num_sampled [R] of token_ids [R, K] to the requests' tokens."""
        if not self._slots:
            return
        width = token_ids.shape[1]
        self._longest += width
        if self._longest > self._tokens.shape[1]:
            # The bound grows with every commit, whoever it is for: look how long the longest really is, then grow.
            self._longest = int(self._length.max()) + width
            self._make_room()
        slots = torch.where(idx_mapping >= 0, self._slot_of[idx_mapping.clamp(min=0)], -1)
        count = torch.where(slots >= 0, num_sampled.to(torch.int64), 0)
        slots = slots.clamp(min=0)
        offsets = torch.arange(width, device=self.device)
        valid = offsets < count.unsqueeze(1)
        # What is not valid is added to slot 0 as a zero at column 0: nothing moves, and no shape depends on the data.
        at = torch.where(valid, self._length[slots].unsqueeze(1) + offsets, 0)
        delta = torch.where(valid, token_ids - self._tokens[slots.unsqueeze(1), at], 0)
        self._tokens.index_put_((slots.unsqueeze(1).expand_as(at), at), delta, accumulate=True)
        self._length.index_add_(0, slots, count)

    def before(self, req_idx: Tensor, draft_tokens: Tensor, num_drafts: Tensor) -> TokensSeen:
        """What precedes rows of logits of the requests req_idx [E].

        Args:
            req_idx: int64 [E], requests with a slot.
            draft_tokens: int64 [E, K], drafts before the row.
            num_drafts: int64 [E], how many of them there are.
        """
        slots = self._slot_of[req_idx]
        tokens, length, num = self._tokens[slots, : self._longest], self._length[slots], draft_tokens.shape[1]
        if num:
            tokens = torch.nn.functional.pad(tokens, (0, num))
            draft = torch.arange(tokens.shape[1], device=self.device) - length.unsqueeze(1)
            is_draft = (draft >= 0) & (draft < num_drafts.unsqueeze(1))
            tokens = torch.where(is_draft, draft_tokens.gather(1, draft.clamp(0, num - 1)), tokens)
            length = length + num_drafts
        return TokensSeen(tokens, length, self._prompt_length[slots])

    def _add_slots(self) -> None:
        num_slots = len(self._length)
        added = max(4, num_slots)
        self._tokens = torch.nn.functional.pad(self._tokens, (0, 0, 0, added))
        self._length = torch.nn.functional.pad(self._length, (0, added))
        self._prompt_length = torch.nn.functional.pad(self._prompt_length, (0, added))
        self._free.extend(range(num_slots + added - 1, num_slots - 1, -1))

    def _make_room(self) -> None:
        capacity = self._tokens.shape[1]
        if self._longest > capacity:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, max(capacity, self._longest - capacity)))
