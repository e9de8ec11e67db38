"""Bounds of the store, and those that several parts keep: value, unit, reason, and what changing it breaks.

A bound of one part only stands in that part; those that clients see are in ``ctxd_protocol.limits``.
"""

from typing import Final

DESCRIPTORS_RESERVED: Final = 128
"""File descriptors kept free of connections, for databases, artifacts and the files being indexed."""

CONTEXT_CHARS_MAX: Final = 64 * 1024 * 1024
"""Characters of an assembled context: far more than a model reads. Making the answer takes some eight times as much
memory. A sandbox gets no more than fit into one answer."""

# --- store --------------------------------------------------------------------------------------------------------

COMMIT_WRITES_MAX: Final = 2_000
"""Writes of one transaction. Bounds how long the last of them waits; larger gains nothing, one fsync is shared
already."""

COMMIT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one transaction. Bounds the write-ahead log between two checkpoints."""

QUEUE_WRITES_MAX: Final = 20_000
"""Writes that may wait for their transaction. More are refused as ``store_backlog_full``."""

QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the writes that may wait. Bounds memory while the disk stalls."""

COMPRESSED_BYTES_MIN: Final = 768
"""Bytes of a text or of a journal row's body from which on it is compressed. Half of all rows are smaller; they are a
fifth of the bytes and shrink least, and to read a compressed one takes 15 us more."""

COMPRESSED_BYTES_MAX: Final = 1024 * 1024
"""Bytes above which such a value stays as it is: writes that arrive wait for the step that compresses it, 20 ms."""

COMPRESSED_STEP_BYTES: Final = 64 * 1024
"""Bytes of a write that is compressed before its commit, and of a step of compression in the background: 2 ms."""

CROWDED_S: Final = 0.1
"""Seconds from a transaction of more than one write for which writes are stored as they come: the processor is
theirs."""

COMPRESSION_PAUSE_S: Final = 0.01
"""Seconds between two steps of compression while nothing is written: old stores are compressed at some 5 MB/s."""

COMPRESSION_BACKLOG_ROWS: Final = 20_000
"""Journal rows beyond the last step from which on a store that is never idle takes a step a second."""

CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of write-ahead log after which it is copied into the database. Larger makes recovery slower, smaller copies
more."""

LOG_BYTES: Final = 16 * 1024 * 1024
"""Bytes of write-ahead log after which it begins again from its start, for which writes wait; also bytes by which it
may grow while it is copied, before they wait for that."""

CHECKPOINT_IDLE_S: Final = 1.0
"""Seconds without a write after which the write-ahead log is emptied."""

PURGE_RETRY_S: Final = 0.005
"""Seconds until the next step of a purge's removal while no write comes; doubled each time while a reader is in the
way."""

PURGE_WAIT_S: Final = 5.0
"""Seconds that the answer to a purge waits for its removal; a reader that holds a snapshot longer makes it
incomplete."""

SCRUB_BYTES_PER_S: Final = 1024 * 1024
"""Bytes of the store that the background scrub reads in a second: a store of 4 GB takes an hour."""

SCRUB_STEP_BYTES: Final = 64 * 1024
"""Bytes after which a step of the scrub ends: about two milliseconds of the interpreter."""

SCRUB_STEP_ROWS: Final = 64
"""Journal rows of one step at most."""

BLOOM_DELAY_S: Final = 0.5
"""Seconds from the start until the Bloom filter of a large store is filled: it takes the interpreter from the calls of
clients that have waited for the start."""

SCRUB_DELAY_S: Final = 60.0
"""Seconds from the start to the first step, so that a start is left alone."""

SCRUB_PAUSE_S: Final = 3600.0
"""Seconds from the end of a pass to the next."""

HEADS_CACHED_MAX: Final = 100_000
"""Newest versions kept in memory, about 1 KiB each. Fewer make writes of known objects wait for a read."""

CONTENT_CACHE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of memory that text kept for reads may take."""

OPS_CACHED_MAX: Final = 10_000
"""Finished operation ids kept in memory. A resend of an older one is looked up on disk."""

TAIL_VERIFIED_ROWS: Final = 10_000
"""Journal rows whose hashes are recomputed at each start: about 0.2 s. ``ctxd verify`` recomputes all."""

TAIL_VERIFIED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of journal bodies that are read for it at most, so that a start after large writes is as quick."""

VALID_TIME_LEAD_MS: Final = 60_000
"""Milliseconds that the newest valid time may be ahead of the host's clock before the status reports it."""

PROBE_S: Final = 1.0
"""Seconds between two attempts to write while the disk is full."""

DISK_FREE_MIN: Final = 32 * 1024 * 1024
"""Free bytes below which writes are refused, so that the journal's own transactions and the checkpoint find room."""

WITNESS_S: Final = 1.0
"""Seconds between two rewrites of the head witness: what a cut-off journal may lose unnoticed when no client is
left."""

FLUSH_TIMES_KEPT: Final = 1_024
"""Newest commit durations that the status figures are taken from."""
