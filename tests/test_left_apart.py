"""Threads that come to a barrier without others of their warp, in a few lines as ptxas writes them.

Of compiled kernels: `test_triton_compiles.py`.
"""

import pytest

from tests.left_apart import left_apart

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
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "RET.REL.NODEC R20", ["0000"]),
    ],
    ids=["as seen", "together again", "each store says who", "all of a warp", "no barrier", "back to who called"],
)
def test_threads_left_apart_are_seen(line: str, other: str, places: list[str]) -> None:
    assert left_apart(SEEN.replace(line, other)) == places
