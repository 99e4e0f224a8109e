"""Metrics of actors in the text format of Prometheus, all of them from the status document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hermes_protocol.status import Latency, Phase, Status

__all__ = ["CONTENT_TYPE", "METRICS", "Metric", "StoreState", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[dict[str, str], float]]


class StoreState(NamedTuple):
    """One store at the time of a scrape."""

    database: str
    status: Status | None
    """``None`` while no actor serves it, or while it does not answer."""
    file_bytes: int
    wal_bytes: int


class Metric(NamedTuple):
    """One metric: its name without the prefix, its type, its help, and its samples."""

    name: str
    kind: str
    help: str
    keys: tuple[str, ...]
    """Keys of the status document that it shows."""
    samples: Callable[[Status], Samples]


def _one(read: Callable[[Status], float]) -> Callable[[Status], Samples]:
    return lambda status: [({}, read(status))]


def _quantiles(read: Callable[[Status], Latency]) -> Callable[[Status], Samples]:
    def samples(status: Status) -> Samples:
        found = read(status)
        quantiles = (("0.5", found.p50_ms), ("0.99", found.p99_ms), ("1", found.max_ms))
        return [({"quantile": share}, value / 1e3) for share, value in quantiles]

    return samples


METRICS: tuple[Metric, ...] = (
    Metric("phase", "gauge", "1 for the phase that the actor is in.", ("phase",),
           lambda s: [({"phase": p.value}, float(p is s.phase)) for p in Phase]),
    Metric("info", "gauge", "Versions, always 1.", ("version", "build", "python", "sqlite"),
           lambda s: [({"version": s.version, "build": s.build, "python": s.python,
                        "sqlite": s.sqlite.version}, 1.0)]),
    Metric("uptime_seconds", "gauge", "Seconds since the actor took the owner lock.",
           ("uptime_s",), _one(lambda s: s.uptime_s)),
    Metric("memory_max_kib", "gauge", "Most memory that the actor has had, in KiB.",
           ("memory_max_kib",), _one(lambda s: s.memory_max_kib)),
    Metric("clients", "gauge", "Connections, that of the scrape included.", ("connections",),
           _one(lambda s: len(s.connections))),
    Metric("followers", "gauge", "Subscriptions to the changes.", ("followers",),
           _one(lambda s: s.followers)),
    Metric("rejected_total", "counter", "Connections that were refused.", ("rejected",),
           _one(lambda s: s.rejected)),
    Metric("queue_requests", "gauge", "Requests that wait for the writer.", ("queue",),
           _one(lambda s: s.queue.count)),
    Metric("queue_bytes", "gauge", "Bytes of the budget that are in use.", ("queue",),
           _one(lambda s: s.queue.bytes)),
    Metric("queue_oldest_seconds", "gauge", "Age of the oldest request that waits.", ("queue",),
           _one(lambda s: s.queue.oldest_age_s)),
    Metric("writes_total", "counter", "Requests that were applied.", ("writes",),
           _one(lambda s: s.writes)),
    Metric("refused_total", "counter", "Requests that were answered with an error.", ("refused",),
           _one(lambda s: s.refused)),
    Metric("replayed_total", "counter", "Requests that were answered from a receipt.",
           ("receipts_replayed",), _one(lambda s: s.receipts_replayed)),
    Metric("leases_total", "counter", "Interactive transactions.", ("leases",),
           _one(lambda s: s.leases)),
    Metric("lease_open", "gauge", "1 while an interactive transaction is open.", ("lease",),
           _one(lambda s: float(s.lease is not None))),
    Metric("batches_total", "counter", "Transactions, by the number of their requests.",
           ("batches", "batch_sizes"),
           lambda s: [({"size": size}, n) for size, n in s.batch_sizes.items()]),
    Metric("commit_seconds", "gauge", "Duration of batches, commit and sync included.",
           ("commit_latency",), _quantiles(lambda s: s.commit_latency)),
    Metric("request_seconds", "gauge", "From the arrival of a request to its answer.",
           ("total_latency",), _quantiles(lambda s: s.total_latency)),
    Metric("checkpoints_total", "counter", "Checkpoints, by kind.", ("checkpoints",),
           lambda s: [({"kind": kind}, n) for kind, n in s.checkpoints.items()]),
    Metric("wal_frames", "gauge", "Frames of the write-ahead log.", ("wal_frames",),
           _one(lambda s: s.wal_frames)),
    Metric("wal_pinned", "gauge", "Processes whose snapshot holds a checkpoint up.", ("wal",),
           _one(lambda s: len(s.wal.pinned_by))),
    Metric("index_lag_messages", "gauge", "Messages that are not indexed yet.", ("index",),
           _one(lambda s: s.index.lag)),
    Metric("index_rebuilds_total", "counter", "Rebuilds of the full-text indexes.", ("index",),
           _one(lambda s: s.index.rebuilds)),
    Metric("foreign_commits_total", "counter", "Commits by programs beside the actor.",
           ("foreign_commits",), _one(lambda s: s.foreign_commits)),
    Metric("degraded", "gauge", "Named conditions that need attention.", ("degraded",),
           _one(lambda s: len(s.degraded))),
    Metric("broken", "gauge", "1 if the writer has stopped for good.", ("broken",),
           _one(lambda s: float(s.broken is not None))),
)  # fmt: skip
"""The registry. Every metric reads the status document; counters begin with the actor."""

_PREFIX = "hermes_actor_"


def metrics_text(stores: Iterable[StoreState]) -> str:
    """Return the metrics of *stores*, each with the label ``database``."""
    listed = [*stores]
    lines = [*_block("up", "gauge", "1 if an actor serves the store and answers.",
                     ((one, {}, float(one.status is not None)) for one in listed)),
             *_block("file_bytes", "gauge", "Size of the database file.",
                     ((one, {}, one.file_bytes) for one in listed)),
             *_block("wal_bytes", "gauge", "Size of the write-ahead log.",
                     ((one, {}, one.wal_bytes) for one in listed))]  # fmt: skip
    for metric in METRICS:
        samples = (
            (one, labels, value)
            for one in listed
            if one.status is not None
            for labels, value in metric.samples(one.status)
        )
        lines += _block(metric.name, metric.kind, metric.help, samples)
    return "".join(f"{line}\n" for line in lines)


def _block(
    name: str, kind: str, text: str, samples: Iterable[tuple[StoreState, dict[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for one, labels, value in samples:
        shown = ",".join(
            f'{label}="{_escaped(given)}"'
            for label, given in {"database": one.database, **labels}.items()
        )
        yield f"{_PREFIX}{name}{{{shown}}} {value:.15g}"


def _escaped(text: str) -> str:
    """Return a value of a label; bytes of a path that are not UTF-8 are escaped."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
