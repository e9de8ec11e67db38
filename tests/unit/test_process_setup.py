"""The C library's heap in a daemon: one for all threads, and none of it for large blocks."""

import re
import subprocess
import sys

PROGRAM = """
import ctypes, threading
from ctxd.process_setup import tune_malloc

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.fopen.restype, library.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
library.malloc_info.argtypes, library.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
library.free.argtypes = [ctypes.c_void_p]
tune_malloc()
library.free(library.malloc(2_000_000))  # By default, blocks up to this size are then kept in the heap.
together = threading.Barrier(8)

def allocate():
    together.wait()
    for size in (10_000, 600_000, 600_000):
        library.malloc(size)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
out = library.fopen(b"/dev/stdout", b"w")
library.malloc_info(0, out)
library.fclose(out)
"""


def test_all_threads_share_one_heap_and_large_blocks_are_mapped_on_their_own():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("<heap nr=") == 1
    (mapped,) = re.findall(r'type="mmap" count="(\d+)"', done.stdout)
    assert int(mapped) >= 16
