"""A cache of compiled kernels is packed without what no GPU loads."""

import struct
import tarfile
from pathlib import Path

import pytest

from benchmarks import pack_cache

NAMES = b"\0.text\0.nv_debug_ptx_txt\0.names\0"


def code_of(text: bytes, ptx: bytes) -> bytes:
    """A 64-bit ELF with machine code, PTX text, and the names of its three sections."""
    places = 64, 64 + len(text), 64 + len(text) + len(ptx)
    headers = places[2] + len(NAMES)
    header = bytearray(64)
    struct.pack_into("<Q", header, 40, headers)
    struct.pack_into("<HHH", header, 58, 64, 3, 2)
    result = bytes(header) + text + ptx + NAMES
    for name, place, size in zip((b".text", b".nv_debug", b".names"), places, map(len, (text, ptx, NAMES))):
        section = bytearray(64)
        struct.pack_into("<I", section, 0, NAMES.index(name))
        struct.pack_into("<QQ", section, 24, place, size)
        result += section
    return result


def put_kernel(folder: Path, ptx: bytes = b"") -> None:
    """What the cache holds of a kernel, but for its intermediate forms."""
    folder.mkdir(parents=True)
    (folder / "scan_kernel.cubin").write_bytes(code_of(b"code", ptx))
    (folder / "scan_kernel.json").write_text("{}")


def test_a_cache_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "cache" / "KEY"
    put_kernel(kernel, b".version 8")
    (kernel / "scan_kernel.ptx").write_text("text")
    file = tmp_path / "kernels.tar.xz"
    pack_cache.main([str(tmp_path / "cache"), str(file)])
    assert "1 kernels" in capsys.readouterr().out
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    found = {path.name: path.read_bytes() for path in (tmp_path / "there" / "KEY").iterdir()}
    assert found == {"scan_kernel.cubin": code_of(b"code", bytes(10)), "scan_kernel.json": b"{}"}


def test_what_was_noted_is_packed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ONE", "OTHER"):
        put_kernel(tmp_path / "cache" / name)
    (tmp_path / "names").write_text("OTHER\nELSEWHERE\nOTHER\n")
    file = tmp_path / "kernels.tar.xz"
    pack_cache.main([str(tmp_path / "cache"), str(file), "--names", str(tmp_path / "names")])
    assert "1 kernels" in capsys.readouterr().out
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["OTHER/scan_kernel.cubin", "OTHER/scan_kernel.json"]


def test_a_folder_without_kernels_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pack_cache.main([str(tmp_path), str(tmp_path / "kernels.tar.xz")])
    assert "DIR: needs a cache with compiled kernels" in capsys.readouterr().err


def test_names_that_there_are_not_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_kernel(tmp_path / "KEY")
    with pytest.raises(SystemExit):
        pack_cache.main([str(tmp_path), str(tmp_path / "kernels.tar.xz"), "--names", "nowhere"])
    assert "--names: needs a file; got nowhere" in capsys.readouterr().err
