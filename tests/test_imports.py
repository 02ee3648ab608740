"""What `import drawlot` loads and costs: it must stay usable without the engine's dependencies, and quick."""

import subprocess
import sys

import pytest

import drawlot

HEAVY = ("transformers", "starlette", "triton", "drawlot.engine")

LOADED = """
import sys
{statement}
print(*[name for name in {heavy!r} if name in sys.modules])
"""

# torch itself brings in nothing of drawlot's, so what it costs is none of drawlot's business.
SECONDS = """
import time
import torch
start = time.perf_counter()
import drawlot
drawlot.sample, drawlot.Sampler, drawlot.SamplerOutput  # loaded when first named
print(time.perf_counter() - start)
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def loaded_by(statement):
    return run(LOADED.format(statement=statement, heavy=HEAVY))


def test_the_library_loads_nothing_of_the_engine():
    assert loaded_by("import drawlot") == []
    library = "import drawlot; drawlot.sample, drawlot.Sampler, drawlot.SamplerOutput"
    assert loaded_by(library) == loaded_by("import torch")


def test_the_check_sees_what_it_looks_for():
    assert loaded_by("import drawlot; drawlot.EngineArgs") == ["drawlot.engine"]
    assert loaded_by("import types; sys.modules['triton'] = types") == ["triton"]


def test_the_library_loads_quickly():
    assert any(float(run(SECONDS)[0]) < 0.2 for _ in range(5))


@pytest.mark.parametrize("name", drawlot.__all__)
def test_every_public_name_is_there(name):
    assert getattr(drawlot, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Samplre'"):
        _ = drawlot.Samplre


WITHOUT = "import sys; sys.modules['{missing}'] = None; {statement}"


@pytest.mark.parametrize(
    ("missing", "statement", "message"),
    [
        (
            "typer",
            "import drawlot.__main__ as m; m.main()",
            "drawlot: the command line needs typer: pip install 'drawlot[engine]'",
        ),
        (
            "transformers",
            "import drawlot; drawlot.LLM(model='tiny')",
            "needs transformers: pip install 'drawlot[engine]'",
        ),
    ],
)
def test_a_missing_extra_is_named(missing, statement, message):
    code = WITHOUT.format(missing=missing, statement=statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
