"""The gate of `drawlot bench sampler` before a case, and what a provider draws of it."""

import torch

from drawlot.entrypoints.sampler_benchmark import workload
from drawlot.entrypoints.sampler_benchmark.gate import Gate
from drawlot.entrypoints.sampler_benchmark.oracle import Oracle

CPU = torch.device("cpu")


def gate(case):
    return Gate(Oracle(workload.make(case, CPU)))


def draws(provider, gate):
    call = provider.call(gate.oracle.work)
    return [call(logits) for logits in gate.oracle.buffers]
