"""Numbers that bound what a client, a file or a process may do, each with its unit and reason.

A number that matters to one module only stands in that module.
"""

from __future__ import annotations

__all__ = [
    "ACTOR_OPEN_BUSY_SECONDS", "ANSWER_MAX_BYTES", "ASIDE_CLOSE_SECONDS", "ASIDE_LOOK_SECONDS",
    "ASIDE_PROCESS_BYTES", "ASIDE_PROCESS_FACTOR", "ASIDE_RETRY_FIRST_SECONDS",
    "ASIDE_RETRY_MOST_SECONDS", "ASIDE_STEP_BYTES", "ASIDE_STEP_PAGES", "ASIDE_THREAD_BYTES",
    "ASIDE_TRIES", "BATCH_ANSWER_BYTES", "BATCH_MAX_OPERATIONS", "BATCH_SOFT_SECONDS",
    "BODY_SECONDS", "BULK_BYTES", "BULK_CHUNKS", "BULK_LOOK_SECONDS", "BULK_ROWS",
    "BUSY_RETRY_SECONDS", "CACHE_KIB", "CHECKPOINT_EVERY_COMMITS", "CHECKPOINT_EVERY_FRAMES",
    "CHECKPOINT_EVERY_WRITES", "CLIENTS_KNOWN", "COMMIT_BUSY_SECONDS", "CREDIT_FACTOR",
    "CREDIT_TOTAL_BYTES", "DEFAULT_TIMEOUT_SECONDS", "DRAIN_SECONDS", "EXPIRY_CHECK_SECONDS",
    "EXPIRY_IDLE_SECONDS", "FILL_STEP_ROWS", "FOLLOWER_CHANGES_AT_ONCE", "FOREIGNERS_KEPT",
    "FOREIGN_LOOK_SECONDS", "FOREIGN_SHOWN_SECONDS", "FRAME_MAX_BYTES", "FREE_FRAME_BYTES",
    "HANDOFF_RETRY_SECONDS", "HANDOFF_STAY_SECONDS", "HELLO_SECONDS", "HOLES_AGAIN_SECONDS",
    "HOLES_STEP_ROWS", "HOME_CHECK_SECONDS", "IDLE_EXIT_SECONDS", "IDLE_GRACE_SECONDS",
    "INDEX_ASIDE_BYTES", "INDEX_DEBT_SECONDS", "INDEX_LAG_ASIDE_ROWS", "INDEX_LAG_MAX_ROWS",
    "INDEX_LAG_URGENT_ROWS",
    "INDEX_SLICE_BUSY_SECONDS", "INDEX_SLICE_IDLE_SECONDS", "INDEX_STEP_BYTES",
    "INDEX_STEP_ROWS", "INLINE_FILL_ROWS", "JOURNAL_SIZE_LIMIT_BYTES", "LEASES_REMEMBERED",
    "LEASE_IDLE_SECONDS", "LEASE_LOOK_SECONDS", "LEASE_TOTAL_SECONDS", "LISTEN_BACKLOG",
    "LOG_MAX_BYTES", "LONG_LEASE_SECONDS", "LOOK_AGAIN_SECONDS", "LOOK_WITHOUT_SLEEP_SECONDS",
    "MAINTENANCE_SECONDS", "MERGE_STEP_PAGES", "MESSAGES_IN_A_ROW", "OPEN_BUSY_SECONDS",
    "OUTBOX_FLUSH_BYTES", "OUTBOX_MAX_BYTES", "OUTBOX_TOTAL_BYTES", "OWNED_SECONDS",
    "PHASE_TELL_SECONDS", "PLAIN_LEASE_IDLE_SECONDS", "PLAIN_LEASE_TOTAL_SECONDS",
    "RECEIPTS_KEPT_COMMITS", "RECEIPTS_PRUNED_AT_ONCE", "RECEIPTS_SWEEP_EVERY_COMMITS",
    "RECEIVE_BYTES", "RECONNECT_FIRST_SECONDS", "RECONNECT_MAX_SECONDS",
    "RECOVER_AT_START_SECONDS", "REFUSALS_KEPT", "RESCUE_RECENT_SECONDS", "RESCUE_SECONDS",
    "RESTART_ABOVE_FRAMES", "RESTART_BUDGET_SECONDS", "RESTART_MAX_INTERVAL_SECONDS",
    "RESTART_MIN_INTERVAL_SECONDS", "RING_CHANGES", "SHOW_STATUS_SECONDS", "SPAWN_SECONDS",
    "SPAWN_TRIES", "STAGED_MAX_BYTES", "STAGE_KEPT_SECONDS", "STAGE_PART_BYTES",
    "STALLED_SECONDS", "STATEMENT_BESIDE_OTHERS_SECONDS", "STATEMENT_SHOWN_CHARACTERS",
    "SUCCESSOR_END_SECONDS", "SUCCESSOR_READY_SECONDS", "SUCCESSOR_SERVING_SECONDS",
    "SWITCH_INTERVAL_SECONDS", "TASK_RETRY_SECONDS", "TIMEOUT_MAX_SECONDS",
    "TRUNCATE_AFTER_IDLE_SECONDS", "TRUNCATE_BUDGET_SECONDS", "TURN_SECONDS",
    "UNLINKED_WAL_SECONDS", "UPKEEP_RETRY_SECONDS", "WINDOW_REQUESTS", "WRITER_AWAY_SECONDS",
    "WRITE_STALL_SECONDS",
]  # fmt: skip

# Timeout -------------------------------------------------------------------------------------

DEFAULT_TIMEOUT_SECONDS = 30.0
"""Default timeout of a call: longer than any stall seen in the field that ended well."""

TIMEOUT_MAX_SECONDS = 86_400.0
"""The longest timeout of a request that an actor keeps, whatever its client asks for."""

BUSY_RETRY_SECONDS = 0.005
"""Between tries for a lock that a foreign program holds. SQLite's own handler sleeps up to 100 ms,
which is how waiting writers starve."""

OPEN_BUSY_SECONDS = 1.0
"""Longest wait of opening for the lock when the file must be created or migrated, in the calling
process."""

ACTOR_OPEN_BUSY_SECONDS = 5.0
"""The same for an actor, which reports its phase meanwhile. Well below the timeout of clients, so
that their error names the holder."""

RECOVER_AT_START_SECONDS = 0.25
"""Longest try of start-up recovery before an actor reports ready; the first change continues it."""

LOOK_AGAIN_SECONDS = 0.002
"""Validity of a check of the files, before the next transaction checks again: two checks for each
of many small commits cost more than the commits of a lone writer can spare."""

COMMIT_BUSY_SECONDS = 5.0
"""Longest wait of a commit for readers, on file systems where WAL does not work."""

# Batches --------------------------------------------------------------------------------------

BATCH_MAX_OPERATIONS = 64
"""Beyond 64 the share of the fsync in one operation no longer falls (10 to 13 us)."""

BATCH_SOFT_SECONDS = 0.020
"""A batch commits what it has after this time, so that no client waits for another one's bulk."""

BATCH_ANSWER_BYTES = 1024 * 1024
"""The same when its answers have grown so large: they are in memory until it is committed."""

# Checkpoints ----------------------------------------------------------------------------------

CHECKPOINT_EVERY_WRITES = 50
"""Applied writes after which a PASSIVE checkpoint is due at the first quiet moment."""

CHECKPOINT_EVERY_COMMITS = 50
"""Commits after which a due checkpoint no longer waits for a quiet moment."""

CHECKPOINT_EVERY_FRAMES = 1000
"""Frames after which it no longer waits either: SQLite's own default size of a WAL."""

RESTART_ABOVE_FRAMES = 4000
"""16 MiB of WAL: from here on the writer races short readers to restart the WAL."""

RESTART_BUDGET_SECONDS = 0.020
"""Longest time for which one such race may hold up writers."""

RESTART_MIN_INTERVAL_SECONDS = 1.0
"""Races are at most this frequent, so that they cost at most 2 percent."""

RESTART_MAX_INTERVAL_SECONDS = 60.0
"""While a reader pins the WAL the interval doubles up to this."""

TRUNCATE_AFTER_IDLE_SECONDS = 2.0
"""A quiet file gets a short WAL, for the sake of people who list the folder."""

TRUNCATE_BUDGET_SECONDS = 0.100
"""Longest wait of closing for readers before it leaves the WAL to the next owner."""

UNLINKED_WAL_SECONDS = 10.0
"""Longest wait for readers while an unlinked WAL is checkpointed. Requests block meanwhile; giving
up half-way would lose acknowledged changes."""

JOURNAL_SIZE_LIMIT_BYTES = 16 * 1024 * 1024
"""The WAL file shrinks to this at its next reset; otherwise it keeps its high-water mark."""

CACHE_KIB = 16 * 1024
"""Page cache of the write connection: holds the hot pages of both indexes."""

# Full-text indexing ---------------------------------------------------------------------------

INLINE_FILL_ROWS = 20_000
"""Up to this many messages a migration fills the indexes at once (a few seconds); above it they
fill in slices while the file is already served."""

FILL_STEP_ROWS = 1_000
"""Messages between two looks at the clock, or reports of progress, while many are indexed."""

INDEX_STEP_ROWS = 32
"""Rows between two looks at the clock inside a slice."""

INDEX_STEP_BYTES = 64 * 1024
"""Text between two such looks; trigrams of one megabyte take up to a second and a half."""

INDEX_ASIDE_BYTES = INDEX_STEP_BYTES
"""A larger text is indexed aside. Up to here the worst text (random base64) takes 25 to 80 ms, so
that a slice ends within 250 ms also on a busy machine."""

ASIDE_STEP_BYTES = 1024 * 1024
"""Pages of an index that are copied in one transaction: 5 to 20 ms, most of it the sync."""

ASIDE_STEP_PAGES = 256
"""Pages of a copy without an end that are removed in one transaction; as many bytes."""

ASIDE_LOOK_SECONDS = 0.050
"""Between two looks of the writer whether a text has been indexed aside."""

ASIDE_THREAD_BYTES = 1024 * 1024
"""Text, old and new, that one build may index in a thread; more is indexed in a process. The memory
of FTS5 is 7 to 114 times that, and a process takes about a tenth of a second to start."""

ASIDE_PROCESS_FACTOR = 160
"""Address space of such a process for each byte of text. The worst text that was found (random
letters of one and two bytes, no three of them twice) takes 114."""

ASIDE_PROCESS_BYTES = 512 * 1024 * 1024
"""Address space in addition to that: the interpreter, its libraries, and arenas of its threads."""

ASIDE_RETRY_FIRST_SECONDS = 1.0
"""Before a text is tried again whose process has failed; doubled each time. It may have been killed
by accident, and searches wait for it."""

ASIDE_RETRY_MOST_SECONDS = 300.0
"""The longest such pause. A try may take a minute of one processor, and all of the memory above."""

ASIDE_TRIES = 3
"""After so many failures, work that needs a complete index gives up instead of waiting on."""

ASIDE_CLOSE_SECONDS = 1.0
"""Longest wait of closing for a process that was killed, and for its files to be removed: some
milliseconds. What is left after that is removed by the next owner."""

BULK_ROWS = 256
"""Messages that are indexed aside together. With fewer the segments are smaller and cost more to
merge; more make the transaction longer that places them, which is 10 ms for these."""

BULK_BYTES = 256 * 1024
"""Text of them together: FTS5 takes up to 30 MB of memory to index as much of the worst text."""

BULK_CHUNKS = 2
"""So many of them at a time: one is built while the other is placed, or waits for it."""

BULK_LOOK_SECONDS = 0.005
"""Between two looks of an idle writer whether they are built, which takes about 30 ms."""

MERGE_STEP_PAGES = 128
"""Pages that one transaction merges of an index with large segments: about 5 ms."""

HOLES_STEP_ROWS = 2_000
"""Rows that are looked at for holes in one idle slice: about 2 ms when there is none."""

HOLES_AGAIN_SECONDS = 60.0
"""Between two looks at all rows for holes, while other programs commit to the file."""

INDEX_SLICE_BUSY_SECONDS = 0.010
"""Length of a slice while operations wait: their delay stays far below G13."""

INDEX_DEBT_SECONDS = 0.050
"""Work on the indexes after a batch, waits for threads included, while the lag is urgent. The step
that is begun last takes another 10 to 20 ms of a processor."""

INDEX_SLICE_IDLE_SECONDS = 0.100
"""Length of a slice while nothing waits: a request that arrives waits at most this long."""

INDEX_LAG_MAX_ROWS = 12_000
"""Bounds what a crash leaves unindexed and how long a search may have to wait."""

INDEX_LAG_ASIDE_ROWS = INDEX_LAG_MAX_ROWS * 3 // 4
"""A lag above this is worked off aside, while the writer goes on."""

INDEX_LAG_URGENT_ROWS = INDEX_LAG_MAX_ROWS * 9 // 10
"""A lag above this is worked off between batches even under load. Below the bound, because such
work ends after a while, done or not, and what it owes then is made up for later. Reached after two
and a half seconds of writing as fast as sixteen processes can; agents do not."""

UPKEEP_RETRY_SECONDS = 5.0
"""Before upkeep that has failed is tried again: a full disk, for example, may have room by then."""

FOREIGN_LOOK_SECONDS = 1.0
"""Between two looks of an idle writer for commits of other programs. A look takes no lock."""

IDLE_GRACE_SECONDS = 0.020
"""Quiet time before idle work begins; a lone writer's next call comes sooner than that."""

# Receipts -------------------------------------------------------------------------------------

RECEIPTS_PRUNED_AT_ONCE = 64
"""Acknowledged receipts of a client are removed in one statement when so many have gathered."""

RECEIPTS_KEPT_COMMITS = 100_000
"""Changes for which the receipt of a crashed client is kept: it may still return and ask."""

RECEIPTS_SWEEP_EVERY_COMMITS = 10_000
"""Changes between two sweeps; a sweep reads every receipt."""

REFUSALS_KEPT = 4096
"""Reasons of refusals that are remembered, of all clients together: up to 64 clients may come back
and ask for a whole window again. About a kilobyte each at most."""

CLIENTS_KNOWN = 4096
"""Clients whose highest number is kept in memory; others are looked up when they ask."""

STAGE_KEPT_SECONDS = 120.0
"""Parts of an operation go when their client has added none between two looks, so far apart:
longer than any caller waits by default."""

# The actor ------------------------------------------------------------------------------------

SWITCH_INTERVAL_SECONDS = 0.0005
"""Python's default of 5 ms lets the event loop starve the writer thread between two statements."""

WRITER_AWAY_SECONDS = 0.1
"""A writer that has not looked at its connections for this long is busy with something long: the
event loop reads them. Most batches take a hundredth of it."""

LOOK_WITHOUT_SLEEP_SECONDS = 0.0003
"""After a batch the writer looks for the next request for this long before it sleeps: to be woken
costs a lone writer a tenth of a millisecond, a third of what the sync of its change takes."""

LISTEN_BACKLOG = 1024
"""Connections that wait in the kernel during a hand-off; a full backlog refuses them."""

WINDOW_REQUESTS = 64
"""Unanswered requests of one connection: as many as one batch takes."""

FRAME_MAX_BYTES = 2 * 1024 * 1024
"""Largest frame. Larger operations travel as staged parts."""

STAGE_PART_BYTES = 512 * 1024
"""Size of a staged part, and the size of an operation from which on it is staged is twice that."""

STAGED_MAX_BYTES = 64 * 1024 * 1024
"""Largest operation that travels in parts. While it is applied it is in memory up to four times: as
bytes, as values, and inside SQLite; one at a time."""

CREDIT_TOTAL_BYTES = 32 * 1024 * 1024
"""Bytes of requests, three times their length, that may be in the actor at one time."""

MESSAGES_IN_A_ROW = 16
"""Messages of one client that are handled before others are read."""

FREE_FRAME_BYTES = 1024
"""Frames up to this need no credit: the window bounds them, and asks must be answered always."""

CREDIT_FACTOR = 3
"""A request exists as received bytes, as decoded values and as pages of SQLite."""

BODY_SECONDS = 5.0
"""Longest time for the body of a frame to arrive once its bytes are reserved."""

RECEIVE_BYTES = 64 * 1024
"""Bytes read from a socket at one time: a full window of small requests fits."""

OUTBOX_MAX_BYTES = 4 * 1024 * 1024
"""Replies that wait for a client; beyond, it is sent these and no more."""

OUTBOX_TOTAL_BYTES = 32 * 1024 * 1024
"""Replies that wait for all clients together; beyond, large ones do not wait."""

OUTBOX_FLUSH_BYTES = 256 * 1024
"""Replies of a batch leave together at its end, or as soon as so much has gathered."""

ANSWER_MAX_BYTES = 64 * 1024 * 1024
"""Memory of the rows that one statement of a caller may give; beyond, it is refused."""

WRITE_STALL_SECONDS = 10.0
"""A client that takes nothing for so long is cut off."""

HELLO_SECONDS = 5.0
"""A connection that does not introduce itself is closed."""

STALLED_SECONDS = 1.0
"""From here on the status says that the writer takes nothing: a sync hangs, or upkeep is long."""

DRAIN_SECONDS = 5.0
"""Longest wait of a drain for replies to leave; commits are never cut short."""

SUCCESSOR_READY_SECONDS = 30.0
"""Longest time for a successor to import its code; the old actor serves meanwhile."""

SUCCESSOR_SERVING_SECONDS = 10.0
"""Longest silence of a successor that has the descriptors. Writes wait meanwhile."""

HANDOFF_STAY_SECONDS = 10.0
"""Stay of the old actor after a hand-off, to take back from a successor that dies."""

HANDOFF_RETRY_SECONDS = 60.0
"""Time between two automatic hand-offs to one build: a build that cannot take over is not tried by
every client that starts."""

SUCCESSOR_END_SECONDS = 1.0
"""Longest time for ending a failed successor before the status reports why nothing moves."""

IDLE_EXIT_SECONDS = 600.0
"""An actor that was started on demand ends after this time without connections."""

EXPIRY_CHECK_SECONDS = 0.05
"""Between two looks for requests whose deadline has passed while they waited."""

EXPIRY_IDLE_SECONDS = 0.1
"""The same while nothing waits: an idle actor must not show in the battery."""

TASK_RETRY_SECONDS = 1.0
"""Pause after a periodic task of the actor has failed, so that a lasting fault fills no log."""

RESCUE_RECENT_SECONDS = 60.0
"""A home that is deleted is saved if a client was connected within this time."""

RESCUE_SECONDS = 300.0
"""Longest time for that copy."""

HOME_CHECK_SECONDS = 1.0
"""Time between two checks that the database is still where it was."""

FOLLOWER_CHANGES_AT_ONCE = 256
"""Changes that are put into the outbox of a follower before it is waited for."""

SHOW_STATUS_SECONDS = 0.5
"""Between two redraws of the live view."""

PHASE_TELL_SECONDS = 0.25
"""Time between two checks for a new phase that waiting clients must be sent."""

FOREIGN_SHOWN_SECONDS = 60.0
"""Time after its last commit for which a foreign writer is shown in the status."""

FOREIGNERS_KEPT = 8
"""Foreign writers that are remembered by name."""

RING_CHANGES = 10_000
"""Changes that a subscriber may have missed and still gets one by one."""

LOG_MAX_BYTES = 5 * 1024 * 1024
"""Size at which the log is rotated; three old ones are kept."""

# The client -----------------------------------------------------------------------------------

SPAWN_SECONDS = 30.0
"""Longest wait of a client for an actor that it has started: a migration may be running."""

OWNED_SECONDS = 10.0
"""Longest wait for an owner that does not serve, which may be an actor that starts or exits: longer
than a drain takes."""

SPAWN_TRIES = 4
"""Starts of an actor that exits at once, before a client reports the end of its log."""

RECONNECT_FIRST_SECONDS = 0.002
"""First pause before connecting again; doubles up to the next value."""

RECONNECT_MAX_SECONDS = 0.25
"""Longest pause between two tries to connect."""

MAINTENANCE_SECONDS = 3600.0
"""Longest wait of a command for maintenance of a store (restore, repair, VACUUM), which takes as
long as the file is large; the command reports meanwhile what it waits for."""

# Holds ----------------------------------------------------------------------------------------

HOLD_SILENT_SECONDS = 10.0
"""A caller that keeps changes waiting, and gives no sign of life for so long, keeps them no more:
its process may have been stopped."""

HOLD_SIGN_SECONDS = 1.0
"""Between two such signs."""

HOLD_TOTAL_SECONDS = 540.0
"""The longest that changes are kept waiting for a restore or a repair. Below the time after which
the watchdog of a service manager takes the writer for stuck."""

# Leases ---------------------------------------------------------------------------------------

LEASE_TOTAL_SECONDS = 1.0
"""The longest that one caller may keep the writer to itself, running statements included."""

STATEMENT_BESIDE_OTHERS_SECONDS = 0.200
"""Longest statement or lease of a caller while others wait to write (G13)."""

PLAIN_LEASE_TOTAL_SECONDS = 5.0
"""The same on a plain file, whose programs waited for SQLite's lock for longer than that."""

PLAIN_LEASE_IDLE_SECONDS = 1.0
"""The longest pause inside a lease on a plain file."""

LEASE_LOOK_SECONDS = 0.020
"""Time between two checks, inside a lease, for others that wait."""

LEASE_IDLE_SECONDS = 0.200
"""The longest pause inside a lease; a holder that does more than SQL should not hold it."""

LONG_LEASE_SECONDS = 3600.0
"""The longest transaction that a program may ask for, on a file where others wait for locks; on
any file if it is a migration."""

MIGRATION_PAUSE_SECONDS = 10.0
"""The longest pause inside a migration: its holder may have been stopped."""

MIGRATION_WINDOW_SECONDS = 10.0
"""After a change of the schema, a long statement, or the start of an attached program: time in
which statements of the connection may be parts of a migration."""

STATEMENT_SHOWN_CHARACTERS = 80
"""Length of the statement that an error or a status quotes."""

LEASES_REMEMBERED = 16
"""Ended leases of one connection that are remembered, to say why they have ended."""

TURN_SECONDS = 1800.0
"""Longest turn of a conversation without a sign of life of its holder, who may be stopped."""
