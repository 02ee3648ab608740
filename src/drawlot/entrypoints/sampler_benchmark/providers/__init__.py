"""Who draws tokens in the benchmark of the sampler: drawlot's backends, and others to compare with."""

from drawlot.entrypoints.sampler_benchmark.providers.flashinfer import FlashInfer, FlashInferCake
from drawlot.entrypoints.sampler_benchmark.providers.interface import Call, Drawn, Provider
from drawlot.entrypoints.sampler_benchmark.providers.multipass import MultiPass
from drawlot.entrypoints.sampler_benchmark.providers.own import Drawlot
from drawlot.entrypoints.sampler_benchmark.providers.plain import PlainTorch

PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Drawlot("triton"),
        Drawlot("torch"),
        FlashInferCake(),
        FlashInfer(),
        MultiPass(),
        PlainTorch(),
    )
}

__all__ = ["PROVIDERS", "Call", "Drawn", "Provider"]
