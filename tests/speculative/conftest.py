"""Models of 8 tokens, written once, and engines on them."""

import os

import pytest
import torch

# Read when Triton is imported, which the models of transformers do.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tests.speculative.models import make_engine, make_models


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def engine_of(folder):
    """engine_of(speculative_config or None, **engine arguments)"""
    return lambda speculative_config=None, **args: make_engine(folder, speculative_config, **args)
