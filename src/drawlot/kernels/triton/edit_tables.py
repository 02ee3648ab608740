"""What requests edit, in tables on the device that only requests with edits own a slot of."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import TILE
from drawlot.kernels.requests import RequestEdits
from drawlot.kernels.triton.arguments import EditTables, Emitted, Overlay, RowEdits
from drawlot.kernels.triton.edit_flags import ALLOWED, BIASED, ENDS_BAD_WORD, MASKED, ONE, SEEN, STOPS
from drawlot.kernels.triton.edit_kernels import LAID_TILES, bad_words_kernel, commit_kernel, lay_over_kernel
from drawlot.kernels.triton.edits import num_words_of, width_of
from drawlot.kernels.triton.launch import Launch, Packed, Template, pack
from drawlot.kernels.triton.lost_mass import MOST_TOUCHED
from drawlot.kernels.triton.tensors import int64_a_row, one_a_row, upload
from drawlot.kernels.triton.workspace import overlaps
from drawlot.outputs import LogitsRows

_FIRST_SLOTS = 4


class EditSlots:
    """Hands out slots and fills them. Tables grow when a request is added, never in a step, and do not shrink."""

    def __init__(self, slot_of: Tensor, asked: Tensor, vocab_size: int) -> None:
        """Start without slots.

        Args:
            slot_of: int64 [S], the slot of each request's row, written by the caller; -1: none.
            asked: int64 [S], `States.asked`, likewise.
            vocab_size: V.
        """
        self._device = slot_of.device
        self._vocab_size = vocab_size
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._looking_back: set[int] = set()
        self._with_bad_words: set[int] = set()
        num_words = num_words_of(vocab_size)
        programs = -(-vocab_size // (TILE * LAID_TILES))
        self._find_bad_words = Launch(bad_words_kernel, lambda n, _: n)
        overlap = overlaps(self._device)
        # Values have the bits of the CPU's only without fused multiply-add.
        how: dict[str, Any] = {"OVERLAP": overlap, "launch_pdl": overlap, "enable_fp_fusion": False}
        self._lay_over = Launch(
            lay_over_kernel, lambda n, _: n * programs, NUM_PROGRAMS=programs, TILES=LAID_TILES, **how
        )
        self._commit = Launch(commit_kernel, lambda n, _: n)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self._device)

        self._overlay = _overlay(0, vocab_size, self._device)
        tables = EditTables(
            slot_of=slot_of,
            asked=asked,
            entries=empty(torch.int32, 0, vocab_size),
            touched=empty(torch.int32, 0, num_words),
            touched_ids=empty(torch.int32, 0, min(MOST_TOUCHED, vocab_size)),
            num_touched=empty(torch.int32, 0, 1),
            bias=empty(torch.float32, 0, vocab_size),
            penalties=empty(torch.float32, 0, 4),
            limits=empty(torch.int64, 0, 2),
            tails=empty(torch.int32, 0, 0),
            bad_words=empty(torch.int32, 0, 0, 0),
            banned=empty(torch.int32, 0, num_words),
            vocab_size=vocab_size,
            num_words=num_words,
            most_touched=min(MOST_TOUCHED, vocab_size),
            longest_bad_word=0,
            most_bad_words=0,
        )
        self._growths = 0
        self._keep(tables)

    def __bool__(self) -> bool:
        """Whether a request that edits something is alive."""
        return bool(self._slots)

    def add_request(self, req_idx: int, edits: RequestEdits | None, num_rows: int) -> int:
        """Give the request a slot, if it edits something; returns it, else -1.

        num_rows: rows of a step, at most.
        """
        if edits is None:
            return -1
        tables = self._make_room(edits, num_rows)
        slot = self._slots[req_idx] = self._free.pop()
        self._fill(tables, slot, edits)
        if edits.looks_back:
            self._looking_back.add(req_idx)
        if edits.bad_words:
            self._with_bad_words.add(req_idx)
        return slot

    def remove_request(self, req_idx: int) -> None:
        """Free the request's slot, if it has one."""
        slot = self._slots.pop(req_idx, None)
        if slot is not None:
            self._free.append(slot)
            self._looking_back.discard(req_idx)
            self._with_bad_words.discard(req_idx)

    def reserve_rows(self, num_rows: int) -> None:
        """Make room for what is laid over so many rows of a step, and for their bad words."""
        banned = self._tables.banned
        if 0 < len(self._overlay.kind) < num_rows:
            self._make_overlay(num_rows)
        if 0 < len(banned) < num_rows:
            self._keep(self._tables._replace(banned=_grown(banned, 0, num_rows, self._tables.num_words)))

    @property
    def overlay(self) -> Overlay | None:
        """Where the values of a step's rows are laid; None: no request edits anything."""
        return self._overlay if self._slots else None

    @property
    def capture_key(self) -> Hashable:
        """What a captured step depends on: whether there are edits and bad words, and where their tables lie."""
        return self._growths if self._slots else None, bool(self._looking_back), bool(self._with_bad_words)

    def edits_of(self, n: int, rows: LogitsRows) -> Packed | None:
        """What the overlay of n rows is made of, as `RowEdits`; None: there is none."""
        if not self._slots:
            return None
        columns = rows.expanded_idx_mapping, rows.positions, rows.local_positions, rows.input_ids
        return self._template.packed(*[int64_a_row(column, n) for column in columns])

    def lay_over(self, n: int, packed_rows: Packed, edits: Packed | None) -> None:
        """Bring what edits make of n rows of logits to the overlay, which `packed_rows` has for its edits."""
        if edits is not None:
            self.find_bad_words(n, packed_rows, edits)
            self._lay_over(n, packed_rows, edits)

    def find_bad_words(self, n: int, packed_rows: Packed, edits: Packed | None) -> None:
        """What comes before the edits are laid over rows: who could complete a bad word."""
        if edits is not None and self._with_bad_words:
            self._find_bad_words(n, packed_rows, edits)

    def commit(self, idx_mapping: Tensor, token_ids: Tensor, num_sampled: Tensor) -> None:
        """Count what requests emitted; shapes as in `Sampler.commit`."""
        if self._looking_back and len(idx_mapping):
            n = len(idx_mapping)
            state_rows, num_sampled = one_a_row(idx_mapping, n), one_a_row(num_sampled, n)
            stride, column_stride = token_ids.stride()
            emitted = Emitted(state_rows, token_ids, stride, column_stride, token_ids.shape[1], num_sampled)
            self._commit(n, self._packed_tables, pack(emitted))

    def _fill(self, tables: EditTables, slot: int, edits: RequestEdits) -> None:
        entries = self._entries(edits)
        touched = np.packbits(np.pad(entries != 0, (0, -len(entries) % TILE)), bitorder="little").view(np.int32)
        ids = np.flatnonzero(entries)
        tables.touched[slot] = self._on_device(touched)
        listed = ids[: tables.most_touched].astype(np.int32)
        tables.touched_ids[slot, : len(listed)] = self._on_device(listed)
        tables.num_touched[slot] = self._on_device(np.array([len(ids)], np.int32))
        tables.entries[slot].zero_().scatter_(0, self._on_device(ids), self._on_device(entries[ids]))
        if edits.bias:
            ids = np.fromiter(edits.bias, np.int64)
            tables.bias[slot].scatter_(
                0, self._on_device(ids), self._on_device(np.fromiter(edits.bias.values(), np.float32))
            )
        penalties = np.array([edits.repetition, edits.frequency, edits.presence, _flags_of(edits)], np.float32)
        tables.penalties[slot] = self._on_device(penalties)
        num_bad_words = len(edits.bad_words)
        tables.limits[slot] = self._on_device(np.array([edits.first_stop_position, num_bad_words], np.int64))
        if edits.bad_words:
            longest = tables.longest_bad_word
            words = np.stack([_at_the_end(word, longest) for word in edits.bad_words])
            tables.bad_words[slot, :num_bad_words] = self._on_device(words)
            tables.tails[slot] = self._on_device(_at_the_end(edits.output, longest))

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return upload(torch.from_numpy(array), self._device)

    def _entries(self, edits: RequestEdits) -> NDArray[np.int32]:
        """[V]: what each token's entry says at the start."""
        entries = np.zeros(self._vocab_size, np.int32)
        output = np.array(edits.output, np.int64)
        entries += ONE.value * np.bincount(output, minlength=self._vocab_size).astype(np.int32)
        seen = np.concatenate((np.array(edits.prompt, np.int64), output))
        flags = (
            (SEEN, seen),
            (ALLOWED, edits.allowed or ()),
            (MASKED, edits.masked),
            (STOPS, edits.stop_ids),
            (BIASED, list(edits.bias)),
            (ENDS_BAD_WORD, [word[-1] for word in edits.bad_words]),
        )
        for flag, ids in flags:
            entries[np.asarray(ids, np.int64)] |= flag.value
        return entries

    def _make_room(self, edits: RequestEdits, num_rows: int) -> EditTables:
        """The tables, grown where these edits do not fit."""
        old, slots = self._tables, len(self._tables.entries)
        if len(self._overlay.kind) < num_rows:
            self._make_overlay(num_rows)
        if not self._free:
            added = max(_FIRST_SLOTS, slots)
            self._free.extend(range(slots + added - 1, slots - 1, -1))
            slots += added
        biased = bool(edits.bias) or len(old.bias) > 0
        longest = max(old.longest_bad_word, *map(len, edits.bad_words), 0)
        most = max(old.most_bad_words, len(edits.bad_words))
        tables = old._replace(
            entries=_grown(old.entries, 0, slots, self._vocab_size),
            touched=_grown(old.touched, 0, slots, old.num_words),
            touched_ids=_grown(old.touched_ids, 0, slots, old.most_touched),
            num_touched=_grown(old.num_touched, 0, slots, 1),
            bias=_grown(old.bias, 0, slots if biased else 0, self._vocab_size),
            penalties=_grown(old.penalties, 0, slots, 4),
            limits=_grown(old.limits, 0, slots, 2),
            tails=_grown(old.tails, -1, slots, longest),
            bad_words=_grown(old.bad_words, -1, slots, most, longest),
            banned=_grown(old.banned, 0, num_rows if most else 0, old.num_words),
            longest_bad_word=longest,
            most_bad_words=most,
        )
        if any(new is not kept for new, kept in zip(tables, old)):
            self._keep(tables)
        return tables

    def _make_overlay(self, num_rows: int) -> None:
        self._overlay = _overlay(num_rows, self._vocab_size, self._device)
        self._growths += 1

    def _keep(self, tables: EditTables) -> None:
        self._tables, self._packed_tables = tables, pack(tables)
        place = tables.slot_of
        self._template = Template(RowEdits(self._packed_tables, *[place] * 4), *RowEdits._fields[1:])
        self._growths += 1


def _overlay(num_rows: int, vocab_size: int, device: torch.device) -> Overlay:
    num_words, width = num_words_of(vocab_size), width_of(vocab_size)
    return Overlay(
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty((num_rows, num_words), dtype=torch.int32, device=device),
        torch.empty((num_rows, width), dtype=torch.float32, device=device),
        num_words,
        width,
    )


def _flags_of(edits: RequestEdits) -> int:
    """Those that do something where an entry has them, or has not."""
    flags = (
        (ALLOWED, edits.allowed is not None),
        (MASKED, edits.masked),
        (STOPS, edits.first_stop_position),
        (BIASED, edits.bias),
        (ENDS_BAD_WORD, edits.bad_words),
    )
    return sum(flag.value for flag, is_on in flags if is_on)


def _grown(old: Tensor, fill: int, *shape: int) -> Tensor:
    """A tensor of the shape, the old one in its corner: first in all dimensions, last in the last one."""
    if old.shape == shape:
        return old
    new = old.new_full(shape, fill)
    new[tuple(slice(0, size) for size in old.shape[:-1])][..., shape[-1] - old.shape[-1] :] = old
    return new


def _at_the_end(ids: Sequence[int], length: int) -> NDArray[np.int32]:
    """int32 [length]: the last ids, the last one rightmost, -1 before them."""
    line = np.full(length, -1, np.int32)
    ids = ids[-length:]
    line[length - len(ids) :] = ids
    return line
