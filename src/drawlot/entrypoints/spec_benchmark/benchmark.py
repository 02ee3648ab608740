"""Runs cases in turn with an engine that does not draft, and writes down what drafts did and what they saved."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any

from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.engine.metrics import SpeculativeMetrics
from drawlot.engine.speculative_config import SpeculativeConfig
from drawlot.entrypoints.sampler_benchmark.environment import environment
from drawlot.entrypoints.spec_benchmark.cases import Case, Work
from drawlot.entrypoints.spec_benchmark.expected import ExpectedAcceptance
from drawlot.entrypoints.spec_benchmark.held_out import held_out, prompts_from
from drawlot.entrypoints.spec_benchmark.rivals import Rival, all_rivals
from drawlot.errors import ParameterError
from drawlot.params import SamplingParams

MODEL = "tiny"
Record = dict[str, Any]
Tokens = list[list[int]]
Run = Callable[[], tuple[float, Tokens]]
Prepare = Callable[[Work, str, Tokens], tuple[Run, Callable[[], Record]]]
"""Gives a timed run of all prompts, warm, and what there is to say after some runs"""


def benchmark(
    cases: Sequence[Case],
    work: Work,
    *,
    device: str = "auto",
    repeats: int = 3,
    baseline: bool | None = None,
    progress: Callable[[str], object] = lambda line: None,
    keep: Callable[[Record], object] = lambda record: None,
) -> Record:
    """Measure cases with the embedded models in float32.

    Args:
        cases: Configurations.
        work: What they go on with.
        device: As for an engine.
        repeats: Timed runs of each case, each right after one without drafts.
        baseline: Time transformers too, with and without assistance, which takes one prompt at a time; None: if
            the engine does so.
        progress: Is told what is about to be done, and what came of it.
        keep: Is given the record after each case, with the results that there are.

    Returns:
        A record of JSON's types: `environment`, `conditions`, and `results`, one for each case and rival: its speed,
        `speed_up` over the engine without drafts (median of the ratios of neighbouring runs), tokens emitted a step,
        and of the engine's own cases the acceptance and the shares of a step's time.

    Raises:
        InputError: A file is not held out, missing or too short.
        ParameterError: transformers is to be timed beside requests that run together.
        DrawlotError: What `Engine` raises.
    """
    if baseline and work.together > 1:
        raise ParameterError("baseline", "needs together=1: assistance takes one prompt at a time", baseline)
    files = [held_out(name) for name in work.files]
    plain = _engine(work, device, None)
    prompts = prompts_from(files, plain.tokenizer, work.prompts, work.prompt_tokens)
    temperatures = dict.fromkeys(case.temperature for case in cases)
    counts = dict.fromkeys(case.num_drafts for case in cases)
    subjects: list[tuple[Case | Rival, Prepare]] = [(case, partial(_drafting, case)) for case in cases]
    if baseline or (baseline is None and work.together == 1):
        subjects += [(rival, partial(_rival, rival)) for rival in all_rivals(temperatures, counts)]
    wanted = {temperature: _run(plain, prompts, work, temperature)[1] for temperature in temperatures}
    facts = environment(plain.config.device)
    facts["versions"]["transformers"] = version("transformers")
    conditions = work._asdict() | {
        "files": {file.name: "as held out" if file.as_held_out else "of another version" for file in files},
        "model": MODEL,
        "repeats": repeats,
    }
    results: list[Record] = []
    record: Record = {"environment": facts, "conditions": conditions, "results": results}
    for number, (case, prepare) in enumerate(subjects, 1):
        progress(f"[{number}/{len(subjects)}] {case.name}, {case.num_drafts} drafts, temperature {case.temperature:g}")
        run, describe = prepare(work, device, prompts)
        pairs = []
        for _ in range(repeats):
            without = _run(plain, prompts, work, case.temperature)[0]
            seconds, tokens = run()
            pairs.append((without, seconds))
        results.append(
            {
                "name": case.name,
                "temperature": case.temperature,
                "num_drafts": case.num_drafts,
                "tokens_per_s": work.prompts * work.new_tokens / median(seconds for _, seconds in pairs),
                "speed_up": median(without / seconds for without, seconds in pairs),
                "seconds": [seconds for _, seconds in pairs],
                "seconds_without_drafts": [without for without, _ in pairs],
                "prompts_with_equal_tokens": sum(map(list.__eq__, tokens, wanted[case.temperature])),
                **describe(),
            }
        )
        speed_up, emitted = results[-1]["speed_up"], results[-1]["emitted_per_step"]
        progress(f"  {speed_up:.2f} x, {emitted:.2f} tokens a step")
        keep(record)
    return record


def _engine(work: Work, device: str, speculative_config: SpeculativeConfig | None) -> Engine:
    return Engine(
        EngineArgs(
            model=MODEL,
            device=device,
            dtype="float32",
            max_num_seqs=work.together,
            enable_prefix_caching=False,
            speculative_config=speculative_config,
        )
    )


def _run(engine: Engine, prompts: Tokens, work: Work, temperature: float) -> tuple[float, Tokens]:
    """Seconds, and the tokens of each prompt; nothing ends early."""
    tokens: dict[str, list[int]] = {}
    begin = time.perf_counter()
    for index, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=temperature, seed=index, max_tokens=work.new_tokens, ignore_eos=True, detokenize=False
        )
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = output.outputs[0].token_ids
    return time.perf_counter() - begin, [tokens[str(index)] for index in range(len(prompts))]


def _drafting(case: Case, work: Work, device: str, prompts: Tokens) -> tuple[Run, Callable[[], Record]]:
    engine = _engine(work, device, case.config)
    assert engine.drafting is not None
    expected = ExpectedAcceptance(engine.drafting.verifier.sampler)
    engine.drafting.on_verified = expected
    # The same tokens as in the timed runs, which nobody watches and which are warm after this.
    _run(engine, prompts, work, case.temperature)
    engine.drafting.on_verified = None
    metrics, engine.speculative_metrics = engine.speculative_metrics, SpeculativeMetrics()

    def describe() -> Record:
        seconds = engine.speculative_metrics.seconds
        return {
            "speculator": case.speculator,
            "verification": case.verification,
            "emitted_per_step": metrics.mean_acceptance_length,
            "steps": metrics.num_spec_steps,
            "drafted": metrics.num_draft_tokens,
            "accepted": metrics.num_accepted_draft_tokens,
            "reached": sum(metrics.reached),
            "expected_accepted": expected.total,
            "conditional_acceptance": metrics.conditional_acceptance,
            "unconditional_acceptance": metrics.unconditional_acceptance,
            "time": {part: each / sum(seconds.values()) for part, each in seconds.items()},
        }

    return lambda: _run(engine, prompts, work, case.temperature), describe


def _rival(rival: Rival, work: Work, device: str, prompts: Tokens) -> tuple[Run, Callable[[], Record]]:
    model = rival.loaded(device)
    model.generate(prompts[0], work.new_tokens)

    def run() -> tuple[float, Tokens]:
        begin = time.perf_counter()
        tokens = [model.generate(prompt, work.new_tokens) for prompt in prompts]
        return time.perf_counter() - begin, tokens

    return run, lambda: {"emitted_per_step": model.emitted / max(1, model.forwards)}
