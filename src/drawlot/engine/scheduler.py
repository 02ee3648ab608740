"""Which tokens of which choices the next step computes."""

from collections import deque
from typing import NamedTuple

from drawlot.engine.config import EngineConfig
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.request import Choice


class Chunk(NamedTuple):
    """Tokens num_computed .. num_computed + num_tokens of a choice, and drafts of those that follow."""

    choice: Choice
    num_tokens: int
    num_drafts: int = 0
    """At most: the speculator may find fewer"""

    @property
    def end(self) -> int:
        """Tokens computed after the step, without drafts."""
        return self.choice.num_computed + self.num_tokens

    @property
    def draws(self) -> bool:
        """The chunk ends with the choice's last token, whose logits are those of the next."""
        return self.end >= len(self.choice.token_ids)

    @property
    def only_decodes(self) -> bool:
        """One token in, one token drawn."""
        return self.num_tokens == 1 and self.draws and self.choice.request.max_tokens > 0


class Schedule(NamedTuple):
    """One step. Rows are freed before others are taken."""

    chunks: list[Chunk]
    preempted_rows: list[int]
    admitted: list[Choice]


class Scheduler:
    """First come, first served: both queues are in order of arrival, and every running choice came before the waiting.

    Whoever runs computes all its missing tokens, as far as the step has room: a prompt in chunks, then one token a
    step. When blocks run out the latest arrival goes back to waiting and will compute its tokens again; the first
    can always take the blocks of all others, and admission checked that it fits alone.

    A choice gets all the drafts that it wants or waits, and after a preemption it first computes all but its last
    token: what it drafts and draws does not depend on its neighbours.
    """

    def __init__(self, config: EngineConfig, cache: KVCache) -> None:
        self.config = config
        self.cache = cache
        self.waiting: deque[Choice] = deque()
        self.running: list[Choice] = []
        self._free_rows = list(range(config.max_num_seqs))

    def add(self, choice: Choice) -> None:
        """Queue a new choice."""
        self.waiting.append(choice)

    def schedule(self) -> Schedule:
        """Choose the next step's chunks and give them cache blocks."""
        budget = _Budget(self.config.max_num_batched_tokens, self.config.max_prompt_logprob_rows)
        chunks: list[Chunk] = []
        preempted_rows: list[int] = []
        # Not a copy: preemption shortens the list from its end while we walk.
        for choice in self.running:
            chunk = budget.grant(choice)
            if chunk is None:
                continue
            while not self.cache.grow(choice, chunk.end + chunk.num_drafts):
                latest = self.running.pop()
                preempted_rows.append(latest.row)
                self._leave(latest)
                self.waiting.appendleft(latest)
                if latest is choice:
                    break
            else:
                budget.spend(chunk)
                chunks.append(chunk)
        admitted = [] if preempted_rows else self._admit(budget, chunks)
        return Schedule(chunks, preempted_rows, admitted)

    def run_ahead(self) -> list[Chunk]:
        """The step after one that is still under way: a token for each running choice, whatever that one draws.

        Empty if it depends on what is drawn or might do more: somebody could be admitted, a choice has reached its
        length, or there are not blocks for all.
        """
        if self.waiting and self._free_rows:
            return []
        for choice in self.running:
            if not choice.awaits_token or choice.num_output + 1 >= choice.request.max_tokens:
                return []
        missing = [self.cache.blocks_for(choice.num_computed + 1) > len(choice.blocks) for choice in self.running]
        if sum(missing) > self.cache.num_free:
            return []
        for choice in self.running:
            self.cache.grow(choice, choice.num_computed + 1)
        return [Chunk(choice, 1) for choice in self.running]

    def remove(self, choice: Choice, discard: bool = False) -> list[int]:
        """Forget a finished or aborted choice.

        Returns:
            The blocks that nobody owns now; none for a choice that was waiting.
        """
        if choice.row < 0:
            self.waiting.remove(choice)
            return []
        self.running.remove(choice)
        return self._leave(choice, discard)

    def _admit(self, budget: "_Budget", chunks: list[Chunk]) -> list[Choice]:
        admitted = []
        while self.waiting and self._free_rows:
            choice = self.waiting[0]
            if self._awaits_shared_prompt(choice):
                break
            choice.row = self._free_rows.pop()
            if not choice.reads_prompt_logprobs:
                self.cache.reuse_prefix(choice)
            chunk = budget.grant(choice)
            # All its tokens must fit, not only the chunk: fewer preemptions.
            wanted = self.cache.blocks_for(len(choice.token_ids) + choice.num_drafts)
            if chunk is None or wanted - len(choice.blocks) > self.cache.num_free:
                self._leave(choice)
                break
            self.cache.grow(choice, chunk.end + chunk.num_drafts)
            budget.spend(chunk)
            chunks.append(chunk)
            self.running.append(choice)
            admitted.append(self.waiting.popleft())
        return admitted

    def _awaits_shared_prompt(self, choice: Choice) -> bool:
        """The first choice is still reading the prompt, whose blocks this one can then share."""
        first, prompt = choice.request.choices[0], choice.request.prompt_token_ids
        shareable = self.config.enable_prefix_caching and len(prompt) > self.config.block_size
        return shareable and first is not choice and first.row >= 0 and first.num_computed < len(prompt)

    def _leave(self, choice: Choice, discard: bool = False) -> list[int]:
        freed = self.cache.release(choice, discard)
        self._free_rows.append(choice.row)
        choice.row = -1
        return freed


class _Budget:
    """What is left of a step."""

    def __init__(self, num_tokens: int, num_prompt_logprob_rows: int) -> None:
        self.num_tokens = num_tokens
        self.num_prompt_logprob_rows = num_prompt_logprob_rows

    def grant(self, choice: Choice) -> Chunk | None:
        """What the step has room for; None if nothing."""
        missing, drafts = len(choice.token_ids) - choice.num_computed, choice.num_drafts
        if drafts and missing == 1:
            return Chunk(choice, 1, drafts) if 1 + drafts <= self.num_tokens else None
        count = min(missing - (drafts > 0), self.num_tokens)
        if choice.reads_prompt_logprobs:
            count = min(count, self.num_prompt_logprob_rows)
        return Chunk(choice, count) if count else None

    def spend(self, chunk: Chunk) -> None:
        """Take it from what is left."""
        self.num_tokens -= chunk.num_tokens + chunk.num_drafts
        if chunk.choice.reads_prompt_logprobs:
            self.num_prompt_logprob_rows -= chunk.num_tokens
