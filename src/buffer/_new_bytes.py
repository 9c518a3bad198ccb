"""Large `bytes` objects, filled where they are.

A `bytes` of many MiB comes from the kernel anew every time, one page of 4 KiB after the other, and for 64 MiB that
takes several times as long as to copy them. On Linux huge pages can be asked for, but only before the first byte is
written. So this makes a `bytes` as C code does: an empty object, which nobody else has seen yet, filled in place.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

_HUGE_FROM_BYTES: Final = 8 << 20  # a few huge pages of 2 MiB; smaller objects come out of memory used before
_CAN_ADVISE: Final = sys.implementation.name == "cpython" and hasattr(mmap, "MADV_HUGEPAGE")


def new_bytes(size: int, fill: Callable[[Any], None]) -> bytes:
    """A `bytes` of `size` that `fill` has written, to a mutable `pyarrow.Buffer`; it must not keep that buffer."""
    if not _CAN_ADVISE or size < _HUGE_FROM_BYTES:
        out = pa.allocate_buffer(size)
        fill(out)
        return bytes(out)
    made: bytes = _allocate(None, size)
    address: int = _address(made)
    first_page = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end_of_pages = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    _advise(first_page, end_of_pages - first_page, mmap.MADV_HUGEPAGE)  # refused or not, the memory can be used
    fill(pa.py_buffer((ctypes.c_char * size).from_address(address)))
    return made


def _c_function(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


if _CAN_ADVISE:
    # Loaded anew: the functions of `ctypes.pythonapi` are shared, and so are the types that are set on them.
    _PYTHON: Final = ctypes.PyDLL(None)
    _allocate = _c_function(_PYTHON, "PyBytes_FromStringAndSize", ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)
    _address = _c_function(_PYTHON, "PyBytes_AsString", ctypes.c_void_p, ctypes.py_object)
    _advise = _c_function(ctypes.CDLL(None), "madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
