"""Blocks of the paged KV cache: who owns which, and which prefix a block holds."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from drawlot.engine.request import Choice

NULL_BLOCK = 0
"""Never given out and never written: what a block table holds where it holds no block."""


class KVCache:
    """The host's side of the pool.

    A block is owned by every choice whose table holds it. A full block is known by the hash of all tokens up to its
    end, also while nobody owns it, until it is given out anew: least recently used first, ends of prefixes before
    their beginnings.
    """

    def __init__(
        self, num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int, prefix_caching: bool
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.tables = np.full((max_num_seqs, self.blocks_for(max_model_len)), NULL_BLOCK, dtype=np.int64)
        """int64 [max_num_seqs, blocks of the longest request]: the blocks of the choice that owns a row"""
        self._owners = [0] * (num_blocks + 1)
        self._free = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def reuse_prefix(self, choice: Choice) -> None:
        """Begin with the longest known prefix of the choice's tokens; at least one token is left to compute."""
        if not self.prefix_caching:
            return
        most = (len(choice.token_ids) - 1) // self.block_size
        self._hash_blocks(choice, most)
        for block_hash in choice.block_hashes[:most]:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            if self._owners[block] == 0:
                del self._free[block]
            self._add(choice, block)
        choice.num_computed = choice.num_cached = len(choice.blocks) * self.block_size

    def grow(self, choice: Choice, num_tokens: int) -> bool:
        """Own blocks for so many tokens; False, with nothing changed, if too few are free."""
        missing = self.blocks_for(num_tokens) - len(choice.blocks)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._add(choice, block)
        return True

    def remember(self, choice: Choice) -> None:
        """Make the choice's full computed blocks known to others."""
        # With a step under way, one more is computed than known.
        full = min(choice.num_computed, len(choice.token_ids)) // self.block_size
        if not self.prefix_caching or full * self.block_size <= choice.num_cached:
            return
        self._hash_blocks(choice, full)
        for index in range(choice.num_cached // self.block_size, full):
            block, block_hash = choice.blocks[index], choice.block_hashes[index]
            if block_hash not in self._block_of:
                self._block_of[block_hash] = block
                self._hash_of[block] = block_hash
        choice.num_cached = full * self.block_size

    def release(self, choice: Choice, discard: bool = False) -> list[int]:
        """Disown the choice's blocks.

        Args:
            choice: Whose row is cleared; it may come back and compute its tokens again.
            discard: The contents are bad: forget what they were.

        Returns:
            The blocks that nobody owns now.
        """
        freed = []
        for block in reversed(choice.blocks):
            self._owners[block] -= 1
            if discard:
                self._forget(block)
            if self._owners[block] == 0:
                freed.append(block)
                self._free[block] = None
                self._free.move_to_end(block, last=block in self._hash_of)
        self.tables[choice.row] = NULL_BLOCK
        choice.blocks.clear()
        choice.num_computed = choice.num_cached = 0
        return freed

    def _add(self, choice: Choice, block: int) -> None:
        self._owners[block] += 1
        self.tables[choice.row, len(choice.blocks)] = block
        choice.blocks.append(block)

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]

    def _hash_blocks(self, choice: Choice, count: int) -> None:
        hashes = choice.block_hashes
        for index in range(len(hashes), count):
            tokens: Iterable[int] = choice.token_ids[index * self.block_size : (index + 1) * self.block_size]
            before = hashes[-1] if hashes else b""
            # Cryptographic: a prompt made to collide must not read another request's cache.
            hashes.append(blake2b(before + array("q", tokens).tobytes(), digest_size=32).digest())
