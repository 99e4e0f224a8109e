"""Private, throw-away database servers, one of each kind per test session.

They listen on Unix sockets in a temporary folder and nowhere else. ``DATABASE_URL_TEST`` names an
existing server to be used in place of the one of its kind; its user must be allowed to make
databases and schemas. A machine without the programs skips, except under continuous integration,
where every skip in ``tests/providers`` is a failure; ``make test`` installs them where it may.
"""

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

START_SECONDS = 60

_servers: list["Server"] = []
"""Those that are there, stopped ones included."""


@atexit.register
def remove_all() -> None:
    """Remove every server of this process. May be called again."""
    while _servers:
        _servers.pop().remove()


def find(*names: str) -> str | None:
    """The first program of these names, also where Debian hides it; None if there is none."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        if found:
            return found
        for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True):
            return str(path)
    return None


def program(*names: str) -> str:
    """The first program of these names; it must be there."""
    found = find(*names)
    assert found is not None, f"{names[0]} is not installed"
    return found


def missing(what: str) -> Any:
    import pytest  # benchmarks use the servers too, without it

    pytest.skip(f"{what} is not installed; make test installs it where it may")


def given(*schemes: str) -> str | None:
    url = os.environ.get("DATABASE_URL_TEST", "")
    return url if url and urlsplit(url).scheme.partition("+")[0] in schemes else None


class Server:
    """A server process: started, stopped, killed and started again on the same data."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix=f"hermes-actor-{kind}-"))
        self.user = unprivileged()
        if self.user is not None:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self.process: Any = None
        self._made = 0
        _servers.append(self)

    def command(self) -> list[str]:
        """Return the command that runs the server."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return True if the server takes connections."""
        raise NotImplementedError

    def new_store(self) -> str:
        """Return the URL of an empty store of its own."""
        raise NotImplementedError

    @property
    def socket(self) -> Path:
        """The socket of servers that have one at a place of our choice."""
        return self.folder / "sock"

    def _heard(self, said: bytes) -> bytes:
        """Return the first words of a server to *said* on its socket; none if it is not there."""
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(str(self.socket))
                tried.sendall(said)
                return tried.recv(16)
            except OSError:
                return b""

    def run(self, *command: str) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, **self._as_user(), cwd=self.folder, timeout=100
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.folder,
                **self._as_user(),
            )
        until = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT is a fast shutdown of PostgreSQL; SIGKILL is a crash."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT if self.kind == "postgresql" else signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _as_user(self) -> dict[str, Any]:
        if self.user is None:
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}


def unprivileged() -> pwd.struct_passwd | None:
    """Servers refuse to run as root: the user that does it for root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LookupError("no unprivileged user")


class PostgreSQL(Server):
    def __init__(self) -> None:
        super().__init__("postgresql")
        self.program = program("postgres")
        self.run(
            program("initdb"), "-D", str(self.folder / "data"), "-A", "trust", "-U", "hermes",
            "--no-sync", "-E", "UTF8", "--locale=C.UTF-8",
        )  # fmt: skip
        self.start()

    def command(self) -> list[str]:
        return [
            self.program, "-D", str(self.folder / "data"), "-k", str(self.folder),
            "-c", "listen_addresses=", "-c", "max_connections=120", "-c", "shared_buffers=64MB",
        ]  # fmt: skip

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.base, autocommit=True).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def base(self) -> str:
        return f"postgresql://hermes@/postgres?host={quote(str(self.folder), safe='')}"

    def new_store(self) -> str:
        return new_schema(self.base)


class Standby(PostgreSQL):
    """A copy of a PostgreSQL server that follows it and takes no changes."""

    def __init__(self, primary: PostgreSQL) -> None:
        Server.__init__(self, "postgresql")
        self.program = primary.program
        self.run(
            program("pg_basebackup"), "-D", str(self.folder / "data"), "-h", str(primary.folder),
            "-U", "hermes", "-X", "stream", "-c", "fast", "-R",
        )  # fmt: skip
        self.start()


class SmallDisk(PostgreSQL):
    """A PostgreSQL server with a file system of a few megabytes, which goes with it."""

    def __init__(self) -> None:
        self.disk: Path | None = None
        super().__init__()

    def start(self) -> None:
        self.disk = self.folder / "disk"
        self.disk.mkdir(exist_ok=True)
        super().start()

    def command(self) -> list[str]:
        assert self.user is not None, "only root can mount the disk"
        as_user = ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}"]
        script = (
            f"mount -t tmpfs -o size=24m,uid={self.user.pw_uid},mode=700 tmpfs {self.disk}"
            ' && exec "$@"'
        )
        return [
            "unshare", "--mount", "sh", "-c", script, "sh",
            *as_user, "--clear-groups", *super().command(),
        ]  # fmt: skip

    def _as_user(self) -> dict[str, Any]:
        # The server itself is started by the command; only initdb is run for it here.
        return super()._as_user() if self.process is None and self.disk is None else {}


_numbers = iter(range(1, 1_000_000))


def new_schema(base: str) -> str:
    """The URL of an empty store: a schema of its own in one database."""
    import psycopg

    name = f"store_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        conn.execute(f"CREATE SCHEMA {name}")
    mark = "&" if "?" in base else "?"
    return f"{base}{mark}options={quote(f'-csearch_path={name},public')}"


class MariaDB(Server):
    def __init__(self) -> None:
        super().__init__("mysql")
        self.program = program("mariadbd", "mysqld")
        self.run(
            program("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
            f"--tmpdir={self.folder}",
        )  # fmt: skip
        self.start()

    def command(self) -> list[str]:
        return [
            self.program, "--no-defaults", f"--datadir={self.folder / 'data'}",
            f"--socket={self.socket}", f"--pid-file={self.folder / 'pid'}", "--skip-networking",
            f"--log-error={self.folder / 'log'}", "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M", "--max-allowed-packet=64M",
            # A server that starts removes the temporary tables of all others in its folder.
            f"--tmpdir={self.folder}",
        ]  # fmt: skip

    def answers(self) -> bool:
        # Not by PyMySQL, which leaves a socket open when the server does not answer.
        return bool(self._heard(b""))

    def stop(self, number: int = signal.SIGTERM) -> None:
        super().stop(number)

    @property
    def base(self) -> str:
        return f"mysql://root@/?unix_socket={quote(str(self.socket), safe='')}"

    def new_store(self) -> str:
        return new_database(self.base)


class Redis(Server):
    """A Redis server that syncs its log before it answers."""

    def __init__(self) -> None:
        super().__init__("redis")
        self.start()

    def command(self) -> list[str]:
        return [
            program("redis-server"), "--port", "0", "--unixsocket", str(self.socket),
            "--unixsocketperm", "777", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", "always",
        ]  # fmt: skip

    def answers(self) -> bool:
        return self._heard(b"PING\r\n").startswith(b"+PONG")


def new_database(base: str) -> str:
    """The URL of an empty store: a database of its own."""
    import pymysql
    from sqlalchemy.engine import make_url

    url = make_url(base)
    name = f"store_{os.getpid()}_{next(_numbers)}"
    options: dict[str, Any] = {k: v for k, v in url.query.items() if k == "unix_socket"}
    conn = pymysql.connect(
        host=url.host or "localhost",
        port=url.port or 3306,
        user=url.username,
        password=url.password or "",
        **options,
    )
    with contextlib.closing(conn):
        conn.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return url.set(database=name).render_as_string(hide_password=False)


@cache
def postgresql() -> PostgreSQL:
    """The PostgreSQL server of this session."""
    if not find("postgres") or not find("initdb"):
        missing("PostgreSQL")
    return PostgreSQL()


@cache
def mariadb() -> MariaDB:
    """The MariaDB server of this session."""
    if not find("mariadbd", "mysqld") or not find("mariadb-install-db"):
        missing("MariaDB")
    return MariaDB()


@cache
def redis() -> Redis:
    """The Redis server of this process."""
    return Redis()


def new_store(kind: str) -> str:
    """The URL of a new and empty store on a server of *kind*."""
    if kind == "postgresql":
        existing = given("postgresql", "postgres")
        return new_schema(existing) if existing else postgresql().new_store()
    existing = given("mysql", "mariadb")
    return new_database(existing) if existing else mariadb().new_store()
