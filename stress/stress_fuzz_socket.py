"""Any bytes may arrive (R4), over the socket of a real actor, while good neighbours write.

A connection begins with a proper greeting, brings requests whose operations were changed at
random, which are answered one by one, and ends with bytes that are no frame of this protocol.
Others bring such bytes as their first.
"""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

from harness.frames import Mutations, framed
from harness.job import Job, run
from harness.workload import new_sandbox, run_clients
from support.actors import peak_memory
from support.wire import Wire, append, connect, create, frame, request

AT_ONCE = 60
"""Requests of one connection: fewer than the window, so that all are answered."""

PER_SANDBOX = 100_000
MEMORY_BYTES = 250 * 1024 * 1024


def main(job: Job) -> None:
    mutations = Mutations(job.rng, without=("drain", "handoff", "lease", "sql", "upkeep", "op."))
    while job.more():
        sandbox = new_sandbox(job)
        with (
            sandbox.open(),
            run_clients(sandbox, job.rng, writers=2, readers=1, pause=0.01) as load,
        ):
            pid, sent = sandbox.serves(), 0
            while sent < PER_SANDBOX and job.more():
                if job.rng.random() < 0.3:
                    number = without_a_greeting(sandbox.path, mutations)
                else:
                    number = with_a_greeting(job, sandbox.path, mutations)
                sent += number
                job.count("frames", number)
            load.stop_faults()
            load.goes_on()
            job.demand(sandbox.serves() == pid, "the actor did not survive")
            # The actor survives any exception (G16), but bytes of a client are not a surprise: each
            # kind of them has an error that names it.
            surprises = sandbox.log_count("unexpected error")
            job.demand(surprises == 0, f"{surprises} connections ended by an unexpected error")
            peak = peak_memory(pid)
            job.demand(peak < MEMORY_BYTES, f"the actor grew to {peak >> 20} MiB")
            load.judge(job)


def without_a_greeting(path: Path, mutations: Mutations) -> int:
    sock = connect(path)
    with contextlib.closing(sock), contextlib.suppress(OSError):
        sock.sendall(mutations.draw())
    return 1


def with_a_greeting(job: Job, path: Path, mutations: Mutations) -> int:
    """Every request is answered, whatever its operation has become; then a bad end."""
    with contextlib.closing(Wire(path)) as wire:
        requests = [changed_request(job.rng, seq) for seq in range(1, AT_ONCE + 1)]
        wire.send(b"".join(requests))
        # What cannot be read is answered at once, the rest after its commit: in any order.
        open_ = set(range(1, AT_ONCE + 1))
        while open_:
            answer = wire.receive()
            if answer is None or answer.get("seq") not in open_:
                seq = min(open_)
                job.violation(f"request {seq} was answered {answer}: {requests[seq - 1].hex()}")
                return AT_ONCE
            open_.discard(answer["seq"])
        with contextlib.suppress(OSError):
            wire.send(mutations.draw())
    return AT_ONCE + 1


def changed_request(rng: random.Random, seq: int) -> bytes:
    """A good request around an operation of which some bytes are others."""
    operation = rng.choice([append("fuzz", "x" * rng.randrange(32)), create("fuzz"),
                            {"op": "meta.set", "key": "fuzz", "value": "1"}])  # fmt: skip
    empty = frame(request(seq, {}))[4:]
    whole = frame(request(seq, operation))[4:]
    # The operation is the last field: what comes before it stays as it is.
    head = len(empty) - 1
    assert whole[:head] == empty[:head]
    body = bytearray(whole)
    # Texts change, no type and no length does: the envelope stays one MessagePack map.
    places = [n for n in range(head + 4, len(body)) if 0x20 <= body[n] < 0x7F]
    for _ in range(rng.randrange(1, 5)):
        body[rng.choice(places)] = rng.choice([rng.randrange(0x20, 0x7F), rng.randrange(0xC2, 256)])
    return framed(bytes(body))


if __name__ == "__main__":
    sys.exit(run(main, "frames", short=2_000, usual=200_000))
