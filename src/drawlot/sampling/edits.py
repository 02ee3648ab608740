"""Requests' masks, biases and penalties as sparse edits of the rows of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from drawlot.errors import ParameterError
from drawlot.kernels.inputs import Edits, SparseBias, SparsePenalties
from drawlot.outputs import LogitsRows
from drawlot.params import SamplingParams
from drawlot.sampling.history import TokenHistory, TokensSeen


@dataclass
class _RequestEdits:
    """What one request edits; tensors lie on the device."""

    allowed: Tensor | None = None
    bias: tuple[Tensor, Tensor] | None = None
    stop_ids: Tensor | None = None
    first_stop_position: int = 0
    """min_tokens counted from the prompt's end: no stop id is drawn before this position"""
    bad_words: list[Tensor] = field(default_factory=list)
    penalties: tuple[float, float, float] | None = None
    """repetition, frequency, presence"""


class EditStates:
    """Holds something only for requests that ask for an edit; a step without such requests costs nothing."""

    def __init__(self, max_num_reqs: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._history = TokenHistory(max_num_reqs, device)
        self._requests: dict[int, _RequestEdits] = {}

    def add_request(
        self,
        req_idx: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        bad_words_token_ids: Sequence[Sequence[int]],
    ) -> None:
        """Keep what the request edits, if anything."""
        edits = _RequestEdits()
        if params.allowed_token_ids is not None:
            edits.allowed = self._ids(sorted(set(params.allowed_token_ids)))
        if params.logit_bias:
            values = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=self.device)
            edits.bias = self._ids(list(params.logit_bias)), values
        if params.min_tokens and params.stop_token_ids:
            edits.stop_ids = self._ids(sorted(set(params.stop_token_ids)))
            edits.first_stop_position = len(prompt_token_ids) + params.min_tokens
        edits.bad_words = [self._ids(word) for word in bad_words_token_ids]
        if params.has_penalties:
            edits.penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        if edits == _RequestEdits():
            return
        self._requests[req_idx] = edits
        if edits.penalties or edits.bad_words:
            self._history.add_request(req_idx, prompt_token_ids, output_token_ids)

    def remove_request(self, req_idx: int) -> None:
        """Forget a request."""
        if self._requests.pop(req_idx, None) is not None:
            self._history.remove_request(req_idx)

    def commit(self, idx_mapping: Tensor, token_ids: Tensor, num_sampled: Tensor) -> None:
        """What was emitted enters penalties and bad words; shapes as in `Sampler.commit`."""
        self._history.commit(idx_mapping, token_ids, num_sampled)

    def build(self, rows: LogitsRows, bitmask: Tensor | None) -> Edits:
        """The edits of the rows of a step."""
        if not self._requests:
            return Edits(bitmask)
        requests = [self._requests.get(req_idx) for req_idx in rows.expanded_idx_mapping.tolist()]
        if not any(requests):
            return Edits(bitmask)
        positions = rows.positions.tolist()
        allowed, masked, bias, bias_values = _Entries(), _Entries(), _Entries(), []
        looking_back = [i for i, r in enumerate(requests) if r is not None and (r.penalties or r.bad_words)]
        seen = self._seen(rows, looking_back) if looking_back else None
        for i, request in enumerate(requests):
            if request is None:
                continue
            if request.allowed is not None:
                allowed.add(i, request.allowed)
            if request.stop_ids is not None and positions[i] < request.first_stop_position:
                masked.add(i, request.stop_ids)
            if request.bias is not None:
                bias.add(i, request.bias[0])
                bias_values.append(request.bias[1])
        if seen is not None:
            for e, i in enumerate(looking_back):
                request = requests[i]
                for word in request.bad_words if request else ():
                    masked.add(i, word[-1:][_completes(word, seen, e)])
        sparse_bias = bias.tensors()
        return Edits(
            bitmask,
            allowed.tensors(),
            masked.tensors(),
            sparse_bias and SparseBias(*sparse_bias, torch.cat(bias_values)),
            seen and self._penalties(seen, looking_back, requests),
        )

    def _seen(self, rows: LogitsRows, which: list[int]) -> TokensSeen:
        """What precedes some rows; the drafts before row i of a step are the input ids of its rows 1 .. i."""
        index = torch.from_numpy(np.array(which)).to(self.device)
        local = rows.local_positions[index]
        most = int(local.max())
        if most == 0:
            return self._history.before(rows.expanded_idx_mapping[index], local.new_empty((len(which), 0)), local)
        offsets = torch.arange(most, device=self.device)
        at = (index - local + 1).unsqueeze(1) + offsets
        drafts = rows.input_ids[at.clamp(max=len(rows.input_ids) - 1)]
        return self._history.before(rows.expanded_idx_mapping[index], drafts, local)

    def _penalties(
        self, seen: TokensSeen, which: list[int], requests: list[_RequestEdits | None]
    ) -> SparsePenalties | None:
        """One entry for each row and distinct token before it."""
        factors = [request.penalties or (1.0, 0.0, 0.0) for request in (requests[i] for i in which) if request]
        if all(factor == (1.0, 0.0, 0.0) for factor in factors):
            return None
        # On the host: sorting a few hundred ids in torch costs more in operations than in work.
        tokens, length, prompt_length = (part.cpu().numpy() for part in seen)
        columns = np.arange(tokens.shape[1])
        valid = columns < length[:, None]
        in_output = (columns >= prompt_length[:, None])[valid]
        line = np.arange(len(which)).repeat(length)
        # A token's occurrences follow each other; the lowest bit says which of them are output.
        occurrences = np.sort((line * self.vocab_size + tokens[valid]) * 2 + in_output)
        if not len(occurrences):
            return None
        token = occurrences >> 1
        first = np.flatnonzero(np.concatenate(([True], token[1:] != token[:-1])))
        count = np.add.reduceat(occurrences & 1, first).astype(np.float32)
        line, ids = np.divmod(token[first], self.vocab_size)
        repetition, frequency, presence = np.array(factors, np.float32)[line].T
        entries = (
            np.array(which)[line],
            ids,
            repetition,
            frequency * count,
            np.where(count > 0, presence, np.float32(0)),
        )
        return SparsePenalties(*(torch.from_numpy(np.ascontiguousarray(part)).to(self.device) for part in entries))

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self.device)


class _Entries:
    """Collects (row, ids) pairs into two flat tensors."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._ids: list[Tensor] = []

    def add(self, row: int, ids: Tensor) -> None:
        if len(ids):
            self._rows.append(row)
            self._ids.append(ids)

    def tensors(self) -> tuple[Tensor, Tensor] | None:
        if not self._ids:
            return None
        ids = torch.cat(self._ids)
        rows = np.repeat(self._rows, [len(part) for part in self._ids])
        return torch.from_numpy(rows).to(ids.device), ids


def _completes(word: Tensor, seen: TokensSeen, e: int) -> Tensor:
    """bool [1]: the output before row e ends with all of the word but its last token."""
    length, start = seen.length[e], seen.length[e] - (len(word) - 1)
    at = start + torch.arange(len(word) - 1, device=word.device)
    tail = seen.tokens[e, at.clamp(min=0)]
    return ((start >= seen.prompt_length[e]) & (length >= 0) & (tail == word[:-1]).all()).unsqueeze(0)


def check_bad_words(bad_words_token_ids: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Check the token ids of bad words.

    Raises:
        ParameterError: A word is empty, or an id is not in [0, vocab_size).
    """
    for word in bad_words_token_ids:
        if len(word) == 0:
            raise ParameterError("bad_words_token_ids", "must hold non-empty lists of token ids", word)
        for token_id in word:
            if not 0 <= token_id < vocab_size:
                raise ParameterError("bad_words_token_ids", f"token ids must be in [0, {vocab_size})", token_id)
