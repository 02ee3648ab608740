"""No barrier of a compiled finish is reached by a part of a warp; of a few lines as ptxas writes them, too."""

import pytest

from tests.left_apart import left_apart
from tests.test_triton_compiles import SAMPLES
from tests.without_gpu import disassembled

SEEN = """
        /*0000*/              @!P2 BRA `(.L_x_1) ;
        /*0010*/                   STG.E desc[UR8][R8.64], R11 ;
        /*0020*/                   BRA `(.L_x_1) ;
.L_x_1:
        /*0030*/                   LDC.64 R8, c[0x0][0x308] ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("line", "other", "places"),
    [
        ("", "", ["0000"]),
        ("LDC.64 R8, c[0x0][0x308]", "BSYNC B0", []),
        ("STG.E desc[UR8][R8.64], R11", "@P1 STG.E desc[UR8][R8.64], R11", []),
        ("@!P2 BRA", "@!UP2 BRA", []),
        ("LDC.64 R8, c[0x0][0x308]", "EXIT", []),
    ],
    ids=["as seen", "together again", "each store says who", "all of a warp", "no barrier"],
)
def test_threads_left_apart_are_seen(line: str, other: str, places: list[str]) -> None:
    assert left_apart(SEEN.replace(line, other)) == places


@pytest.mark.parametrize("asks", ["logprobs=0", "logprobs=5, repetition_penalty=1.2", "repetition_penalty=1.2"])
def test_a_finish_leaves_no_threads_apart(asks: str) -> None:
    pytest.importorskip("triton")
    sass = disassembled(SAMPLES.replace("logprobs=0", asks), "finish_kernel")
    forms = sass.split(".text.finish_kernel:")[1:]
    # Where there are columns of top tokens, few rows may have two programs each.
    assert len(forms) == 3 + ("logprobs=5" in asks)
    assert [left_apart(form) for form in forms] == [[]] * len(forms)
