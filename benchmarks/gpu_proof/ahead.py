"""All that a proof draws, so that its kernels are compiled before a GPU is there: see `benchmarks.compile_ahead`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.gpu_proof import badrows, graphs, invariance, laws, predecessors, sanitizer, steps_equality
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import PLAIN, random_batch
from benchmarks.gpu_proof.steps import NUM_STEPS, Script, sampler_of
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.registry import Backend
from drawlot.kernels.triton.launch import compiling_ahead
from tests.statistical.test_independence import EVEN, TILES
from tests.statistical.test_laws import LAWS
from tests.statistical.test_ties import ROWS

_FEW = 8
_ROWS = 64
"""As few as batches in disguise may have"""


class _Unheard(Proof):
    """Of draws that were not made."""

    def _record(self, *_check: object) -> None:
        pass


def compile_proof(name: str, backend: Backend) -> None:
    """Have the kernels of a proof compiled; nothing is drawn."""

    def draws_nothing(
        logits: torch.Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
    ) -> SampledRows:
        drawn = backend.sample_rows(logits, params, edits, wanted, wide=wide)
        columns = None if drawn.logprobs is None else tuple(column.zero_() for column in drawn.logprobs)
        return SampledRows(drawn.token_ids.zero_(), drawn.status.zero_(), columns)

    setting = Setting(backend._replace(sample_rows=draws_nothing), torch.device("cpu"), small=False)
    with compiling_ahead(), _empty_memory_filled():
        PROOFS[name](setting, _Unheard(name))


@contextmanager
def _empty_memory_filled() -> Iterator[None]:
    """What a sampler would have written is the same each time: no status that rows have, no token."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _play(setting: Setting, vocab_size: int, seed: int) -> None:
    """As `steps.play`."""
    steps_equality.lead(sampler_of(setting, vocab_size, seed), Script(setting, vocab_size, seed), NUM_STEPS)


def _badrows(setting: Setting, proof: Proof) -> None:
    for vocab_size in badrows.SIZES:
        for number in range(len(badrows.FORMS)):
            badrows.check_form(setting, proof, vocab_size, number)


def _badsteps(setting: Setting, _proof: Proof) -> None:
    for vocab_size in badrows.SIZES_OF_STEPS:
        for seed in range(2):
            _play(setting, vocab_size, seed)


def _invariance(setting: Setting, proof: Proof) -> None:
    for vocab_size, _ in invariance.SIZES:
        for name in invariance.FORMS:
            invariance.check_rows(setting, proof, name, vocab_size, _ROWS)
        for edits in ((), invariance.EDITS):
            invariance.check_logprobs_or_not(setting, proof, vocab_size, _ROWS, edits)


def _idle(setting: Setting, proof: Proof) -> None:
    invariance.check_idle_filters(setting, proof, invariance.SIZES[-1][0], _ROWS)


def _devices(setting: Setting, _proof: Proof) -> None:
    for vocab_size, _ in invariance.SIZES:
        setting.draw(random_batch(setting.generator(5), _FEW, vocab_size, PLAIN._replace(edits=invariance.EDITS)))
        for dtype in (torch.float32, torch.bfloat16):
            setting.backend.logprobs_of(*invariance.given_tokens(setting, _FEW, vocab_size, dtype))


def _graphs(setting: Setting, _proof: Proof) -> None:
    for form in graphs.FORMS.values():
        setting.draw(random_batch(setting.generator(0), _FEW, graphs.SIZE[0], form))
    for kinds in graphs.STEPS_OF.values():
        graphs.Steps(setting, kinds, graphs.SIZE[0], 2 * len(kinds)).step()


def _predecessors(setting: Setting, _proof: Proof) -> None:
    sampler = predecessors.sampler_of(setting.device, setting.backend.name, predecessors.VOCAB_SIZE, _FEW)
    sampler(torch.zeros(_FEW, predecessors.VOCAB_SIZE), predecessors.rows_of(_FEW, sampler))


def _laws(setting: Setting, _proof: Proof) -> None:
    places = torch.arange(_FEW)
    for logits, params in LAWS.values():
        laws.tokens_of(setting, torch.as_tensor(logits).float(), places, **params)
    laws.tokens_of(setting, torch.as_tensor(LAWS["counts"][0]).float(), places, wide=True)
    for row, _, params in ROWS.values():
        laws.tokens_of(setting, row, places, **params)
    for _, row, params in laws.wide_rows():
        laws.tokens_of(setting, row, places, **params)
    for row in (EVEN, TILES.flatten()):
        laws.tokens_of(setting, row, places)


def _sanitizer(setting: Setting, proof: Proof) -> None:
    for vocab_size in sanitizer.SIZES:
        for number in range(len(badrows.FORMS)):
            sanitizer.draw_form(setting, proof, vocab_size, number)
    _play(setting, 300, seed=0)
    graphs.Steps(setting, graphs.REQUESTS + graphs.EDITED, 4097, 20).step()


PROOFS: dict[str, Callable[[Setting, Proof], None]] = {
    "badrows": _badrows,
    "badsteps": _badsteps,
    "badids": badrows.prove_ids,
    "invariance": _invariance,
    "idle": _idle,
    "devices": _devices,
    "graphs": _graphs,
    "predecessors": _predecessors,
    "laws": _laws,
    "sanitizer": _sanitizer,
}
