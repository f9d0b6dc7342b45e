"""Large buffers of a web process that serves TLS."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

STORY = """
import ctypes
from web.edge.tls import keep_large_buffers_apart

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "mapped", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

kept = keep_large_buffers_apart()
libc.free(libc.malloc(256 * 1024))
before = libc.mallinfo2().mapped
buffers = [libc.malloc(256 * 1024) for _ in range(40)]
print(kept, libc.mallinfo2().mapped - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or newer")
def test_large_buffers_stay_apart_from_the_heap_after_one_was_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STORY], check=True, capture_output=True, text=True, timeout=120
    )
    kept, mapped = done.stdout.split()
    assert kept == "True"
    assert int(mapped) >= 30  # the end of the heap has room for a few; without the setting, none is mapped
