"""Bounds of the store, and bounds shared by several parts: value, unit, reason, and the effect of a change.

A bound that concerns one part only is defined there; those visible to clients are in ``ctxd_protocol.limits``.
"""

from typing import Final

DESCRIPTORS_RESERVED: Final = 128
"""File descriptors reserved for databases, artifacts and files being indexed; connections do not get them."""

CONTEXT_CHARS_MAX: Final = 64 * 1024 * 1024
"""Maximum characters of an assembled context: far more than a model can read. Making the reply takes about eight times
as much memory. A sandbox gets no more than fits into one reply."""

# --- store --------------------------------------------------------------------------------------------------------

COMMIT_WRITES_MAX: Final = 2_000
"""Maximum writes of one transaction. Bounds the wait of the last of them; a larger value gains nothing, as one fsync is
shared already."""

COMMIT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum bytes of one transaction. Bounds the write-ahead log between two checkpoints."""

QUEUE_WRITES_MAX: Final = 20_000
"""Maximum writes waiting for their transaction. More are refused as ``store_backlog_full``."""

QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes of the waiting writes. Bounds memory while the disk stalls."""

COMPRESSED_BYTES_MIN: Final = 768
"""Minimum bytes of a text or of a journal row's body to be compressed. Half of all rows are smaller; they are a fifth
of the bytes and shrink least, and reading a compressed one takes 15 us more."""

COMPRESSED_BYTES_MAX: Final = 1024 * 1024
"""Bytes above which such a value is not compressed: writes that arrive wait for the step that compresses it, 20 ms."""

COMPRESSED_STEP_BYTES: Final = 64 * 1024
"""Maximum bytes of a write that is compressed before its commit, and of a step of background compression: 2 ms."""

CROWDED_S: Final = 0.1
"""Seconds after a transaction of several writes during which writes are not compressed before their commit, to leave
the processor to them."""

COMPRESSION_PAUSE_S: Final = 0.01
"""Seconds between two steps of compression while nothing is written: old stores are compressed at about 5 MB/s."""

COMPRESSION_BACKLOG_ROWS: Final = 20_000
"""Uncompressed journal rows from which a store that is never idle takes one step of compression a second."""

CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of write-ahead log after which it is copied into the database. A larger value makes recovery slower, a smaller
one copies more."""

LOG_BYTES: Final = 16 * 1024 * 1024
"""Bytes of write-ahead log after which it restarts from its beginning, for which writes wait; also the bytes that it
may grow during a copy before writes wait for the copy."""

CHECKPOINT_IDLE_S: Final = 1.0
"""Seconds without a write after which the write-ahead log is emptied."""

FOLLOWERS_DELAY_S: Final = 0.4
"""Seconds from a durable write until the followers of the journal are woken, so that they read several at once. Up to
twice as long between slow writes, and ``PROBE_S`` on a full disk."""

PURGE_RETRY_S: Final = 0.005
"""Seconds until the next step of a purge's removal while nothing is written; doubled each time a reader blocks it."""

PURGE_WAIT_S: Final = 5.0
"""Seconds that the reply to a purge waits for its removal; if a reader holds a snapshot longer, the purge is reported
as incomplete."""

SCRUB_BYTES_PER_S: Final = 1024 * 1024
"""Bytes of the store that the background scrub reads per second: a store of 4 GB takes an hour."""

SCRUB_STEP_BYTES: Final = 64 * 1024
"""Bytes after which a step of the scrub ends: about two milliseconds of the interpreter lock."""

SCRUB_STEP_ROWS: Final = 64
"""Maximum journal rows of one step."""

BLOOM_DELAY_S: Final = 0.5
"""Seconds from the start until the Bloom filter of a large store is filled: filling it delays the calls of clients that
have waited for the start."""

SCRUB_DELAY_S: Final = 60.0
"""Seconds from the start to the first step, so that the scrub does not slow down a start."""

SCRUB_PAUSE_S: Final = 3600.0
"""Seconds from the end of a pass to the start of the next."""

HEADS_CACHED_MAX: Final = 100_000
"""Maximum newest versions kept in memory, about 1 KiB each. With fewer, writes of known objects wait for a read."""

CONTENT_CACHE_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of memory for text kept for reads. A larger value lets one sandbox exceed its memory, see the figure
``memory``; a smaller one makes more reads go to the database."""

OPS_CACHED_MAX: Final = 10_000
"""Maximum finished operation ids kept in memory. A resend of an older one is looked up on disk."""

TAIL_VERIFIED_ROWS: Final = 10_000
"""Journal rows whose hashes are recomputed at each start: about 0.2 s. ``ctxd verify`` recomputes all."""

TAIL_VERIFIED_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of journal bodies read for that check, so that a start after large writes is as quick."""

VALID_TIME_LEAD_MS: Final = 60_000
"""Milliseconds that the newest valid time may be ahead of the host's clock before the status reports it."""

PROBE_S: Final = 1.0
"""Seconds between two attempts to write while the disk is full."""

DISK_FREE_MIN: Final = 32 * 1024 * 1024
"""Free bytes below which writes are refused, so that the journal's own transactions and the checkpoint have room."""

WITNESS_S: Final = 1.0
"""Seconds between two rewrites of the head witness: the writes that a truncated journal may lose unnoticed if no client
is left."""

FLUSH_TIMES_KEPT: Final = 1_024
"""Newest commit durations from which the status figures are computed."""
