"""Who may talk to an actor, and what it must not be tricked into touching or telling.

The checks of ``tests/process/test_security.py`` are run as they are, each in its own home: other
users, planted links at every place, folders of others, umask, what log and status tell, who sits
on the socket first. Beside them come checks of an actor that clients start on demand: modes of all
files, its environment, its folder, its descriptors, sockets and core files; and stores that are no
database, and modules that lie where a client is.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import ROOT
from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox
from support.actors import descriptors, folder_of, socket_of

CANARY = "swordfish-in-the-environment"

WANTED = 40
"""Checks at least; how many tests of the product there are is found out."""

CLIENT = """
import contextlib, sys
from pathlib import Path
from hermes_actor import SessionDB
sys.executable = sys.argv[2]
with contextlib.closing(SessionDB(Path(sys.argv[1]), mode="actor")) as db:
    db.create_session("s", "cli")
    db.append_message("s", "user", "words that nobody else may see")
"""

Found = Iterator[str]


def private_files(sandbox: Sandbox, _pid: int) -> Found:
    """Started by a client with an open umask: every file is for its user alone."""
    for entry in (*folder_of(sandbox.path).iterdir(), *sandbox.folder.glob("state.db*")):
        mode = stat.S_IMODE(entry.stat().st_mode)
        if mode & 0o077:
            yield f"{entry.name} has the mode {mode:o}"


def private_folder(sandbox: Sandbox, _pid: int) -> Found:
    mode = stat.S_IMODE(folder_of(sandbox.path).stat().st_mode)
    if mode != 0o700:
        yield f"its folder has the mode {mode:o}"


def small_environment(_sandbox: Sandbox, pid: int) -> Found:
    """Secrets of the client that started it are not handed down."""
    if CANARY.encode() in Path(f"/proc/{pid}/environ").read_bytes():
        yield "a secret of a client is in its environment"


def stays_nowhere(_sandbox: Sandbox, pid: int) -> Found:
    """It holds no folder of a client busy."""
    if os.readlink(f"/proc/{pid}/cwd") != "/":
        yield f"it stays in {os.readlink(f'/proc/{pid}/cwd')}"


def own_session(_sandbox: Sandbox, pid: int) -> Found:
    """A signal for the terminal of a client does not reach it."""
    if os.getsid(pid) == os.getsid(0):
        yield "it is in the session of the client"


def no_foreign_descriptors(sandbox: Sandbox, pid: int) -> Found:
    """Files that its client had open are not open in it."""
    secret = str(sandbox.folder / "inherited")
    if secret in descriptors(pid):
        yield "a file of the client is open in it"


def silent_log(sandbox: Sandbox, _pid: int) -> Found:
    for word in ("words that nobody", CANARY):
        if word in sandbox.paths.log.read_text():
            yield f"the log holds {word!r}"


def no_words_to_see(_sandbox: Sandbox, pid: int) -> Found:
    """What every user can see of a process."""
    if CANARY in Path(f"/proc/{pid}/cmdline").read_text():
        yield "a secret is on its command line"


def no_core_file(_sandbox: Sandbox, pid: int) -> Found:
    """It would hold the words of every client."""
    if (found := resource.prlimit(pid, resource.RLIMIT_CORE)) != (0, 0):
        yield f"a core file may have {found}"


def no_network(_sandbox: Sandbox, pid: int) -> Found:
    """Every client reaches it through its folder."""
    ours = {text for text in descriptors(pid) if text.startswith("socket:")}
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                if f"socket:[{line.split()[9]}]" in ours:
                    yield f"it has a socket of {table}"


def sockets_in_a_private_folder(sandbox: Sandbox, pid: int) -> Found:
    """None without a path, which every user could reach."""
    folder = socket_of(sandbox.path).parent
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        yield f"{folder} is not private"
    ours = {text for text in descriptors(pid) if text.startswith("socket:")}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        number, *names = line.split(maxsplit=7)[6:]
        if names and f"socket:[{number}]" in ours and Path(names[0]).parent != folder:
            yield f"it has the socket {names[0]}"


def writes_nowhere_else(sandbox: Sandbox, pid: int) -> Found:
    """Every file that it may change is the store or in its folder."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            info = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
            flags = int(info.partition("flags:")[2].split()[0], 8)
            own = (f"{sandbox.path}", f"{folder_of(sandbox.path)}/", "/dev/null")
            if name.startswith("/") and flags & os.O_ACCMODE and not name.startswith(own):
                yield f"it has {name} open to write"


CHECKS: list[Callable[[Sandbox, int], Found]] = [
    private_files, private_folder, small_environment, stays_nowhere, own_session,
    no_foreign_descriptors, silent_log, no_words_to_see, no_core_file, no_network,
    sockets_in_a_private_folder, writes_nowhere_else,
]  # fmt: skip


LINKS = ("state.db-wal", "state.db-shm", "state.db-journal", "fsync-failed")
"""Places of SQLite and of ours where another user may plant a link; the tests have the others."""


NO_DATABASES: dict[str, Callable[[Path], object]] = {
    "random bytes": lambda path: path.write_bytes(random.Random(1).randbytes(20_000)),
    "a header and random bytes": lambda path: path.write_bytes(
        b"SQLite format 3\0" + random.Random(2).randbytes(20_000)
    ),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
}
"""What may lie in the place of a store."""


OWN = len(CHECKS) + len(LINKS) + len(NO_DATABASES) + 1
"""The checks that are here."""


def main(job: Job) -> None:
    if job.form == "usual" and "break" not in job.options:
        job.goal = max(WANTED, OWN + tests_of_the_product())
    while job.more():
        on_demand(job)
        for name in LINKS:
            planted_link(job, name)
        for name in NO_DATABASES:
            no_database(job, name)
        planted_module(job)
        if job.form != "short" and "break" not in job.options and job.more():
            as_tested(job)


def on_demand(job: Job) -> None:
    """A client with an open umask, secrets and open files starts the actor."""
    sandbox = new_sandbox(job)
    with sandbox.open(), (sandbox.folder / "inherited").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        subprocess.run(
            [sys.executable, "-c", CLIENT, str(sandbox.path), str(sandbox.python)],
            env={**os.environ, "API_KEY": CANARY}, check=True, umask=0, timeout=60,
            pass_fds=[inherited.fileno()], cwd=sandbox.folder,
        )  # fmt: skip
        pid = sandbox.serves()
        for check in CHECKS:
            for text in check(sandbox, pid):
                job.violation(f"{check.__name__}: {text}")
            job.count("checks")


def planted_link(job: Job, name: str) -> None:
    """It is not followed: either the store is refused, or the link is gone."""
    sandbox = new_sandbox(job)
    victim = sandbox.folder / "victim"
    victim.write_text("precious")
    words = [sys.executable, "-c", CLIENT, str(sandbox.path), str(sandbox.python)]
    with sandbox.open():
        subprocess.run(words, check=True, timeout=60)
        sandbox.end()
        folder = sandbox.folder if name.startswith("state.db") else folder_of(sandbox.path)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
        subprocess.run(words, capture_output=True, timeout=60)
    job.demand(victim.read_text() == "precious", f"the link {name} was followed")
    job.count("checks")


def no_database(job: Job, name: str) -> None:
    """It is refused in time, with a typed error, and stays as it was."""
    sandbox = new_sandbox(job)
    NO_DATABASES[name](sandbox.path)
    before = sandbox.path.read_bytes() if sandbox.path.is_file() else sandbox.path.stat().st_ino
    with sandbox.open():
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, str(sandbox.path), str(sandbox.python)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    said = done.stderr.splitlines()[-1:]
    job.demand(
        done.returncode != 0 and any(text.startswith("hermes_actor.errors.") for text in said),
        f"{name} instead of a store: {said}",
    )
    after = sandbox.path.read_bytes() if sandbox.path.is_file() else sandbox.path.stat().st_ino
    job.demand(before == after, f"{name} instead of a store was changed")
    job.count("checks")


def planted_module(job: Job) -> None:
    """What lies where a client is does not become a part of the actor."""
    sandbox = new_sandbox(job)
    sign = sandbox.folder / "executed"
    for module in ("trio", "sitecustomize", "hermes_protocol"):
        (sandbox.folder / f"{module}.py").write_text(f"open({str(sign)!r}, 'w')\n")
    with sandbox.open():
        # The plain interpreter: the one of the sandbox has a search path of its own.
        subprocess.run(
            [sys.executable, "-P", "-c", CLIENT, str(sandbox.path), sys.executable],
            cwd=sandbox.folder, check=True, timeout=60,
        )  # fmt: skip
        sandbox.serves()
    job.demand(not sign.exists(), "a module beside a client was executed")
    job.count("checks")


def _pytest(*options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header"]
    return subprocess.run(
        [*words, *options, "tests/process/test_security.py"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip


def tests_of_the_product() -> int:
    return sum(
        "::" in line for line in _pytest("--collect-only", "-o", "addopts=").stdout.splitlines()
    )


def as_tested(job: Job) -> None:
    """The tests of the product, in a process of their own."""
    done = _pytest("-rA")
    for line in done.stdout.splitlines():
        word, _, name = line.partition(" ")
        if word == "PASSED":
            job.count("checks")
        elif word in ("FAILED", "ERROR"):
            job.violation(name)
    job.demand(done.returncode == 0, f"the tests end with {done.returncode}")


if __name__ == "__main__":
    with contextlib.suppress(KeyError):
        del os.environ["PYTEST_ADDOPTS"]
    sys.exit(run(main, "checks", short=OWN, usual=WANTED))
