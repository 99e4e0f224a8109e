"""Carry out the Dockerfile step by step, in a copy of this system's files: part of ``make dist``.

    python stress/check_image.py FOLDER

It needs root and no container tool. FOLDER is an empty one; what is mounted in it is gone when the
program ends, because the mount namespace ends with it. Nothing is removed by hand: below an overlay
that would be files of this machine.

Every stage begins with an overlay of ``/`` in memory, with an interpreter in the place of the base
image and without the people of this machine; ``COPY``, ``RUN``, ``ENV``, ``USER``, ``VOLUME``,
``HEALTHCHECK``, ``ENTRYPOINT`` and ``CMD`` are then taken from the file as they stand there. The
actor is process 1 of a process namespace of its own. Two containers use one volume after the other:
the second one reads what the first one has stored. What is not the same is the base image with its
version of Python, and the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
BASE = "/opt/base"
"""The environment that stands for the interpreter of the base image."""
PEOPLE = range(1000, 60_000)
"""Users that a base image does not have."""
DEVICES = ("null", "zero", "full", "random", "urandom")
HEALTHY_SECONDS = 60.0
STORE = """
from hermes_actor import SessionDB
with SessionDB() as db:
    db.create_session("kept", source="cli")
    db.append_message("kept", role="user", content="through the volume")
"""


class Step(NamedTuple):
    """An instruction of the Dockerfile."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of the JSON form."""
        words: list[str] = json.loads(self.text[self.text.index("[") :])
        return words


def steps(dockerfile: str) -> list[Step]:
    """Return the instructions of *dockerfile*, in their order."""
    whole = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    found = (line.split(maxsplit=1) for line in whole.splitlines() if line.strip())
    return [Step(name, text.strip()) for name, text in found]


class Stage:
    """The files of one ``FROM``: an overlay, in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.files, upper, work = folder / "files", folder / "upper", folder / "work"
        for one in (self.files, upper, work):
            one.mkdir(parents=True)
        options = f"lowerdir=/,upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, self.files)
        run("mount", "-t", "proc", "proc", self.files / "proc")
        for name in ("tmp", "dev"):
            run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.files / name)
        for name in DEVICES:
            device = os.stat(f"/dev/{name}")
            os.mknod(self.files / "dev" / name, device.st_mode, device.st_rdev)
            (self.files / "dev" / name).chmod(0o666)
        (self.files / "root").chmod(0o755)  # the interpreter may be in there
        remove_people(self.files / "etc")
        self.environment = {
            "PATH": f"{BASE}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root",
            **{name: text for name, text in os.environ.items() if name.startswith("PIP_")},
        }  # fmt: skip
        self.shell(f"{os.path.realpath(sys.executable)} -m venv {BASE}")

    def shell(self, script: str) -> None:
        """Carry out ``RUN``. Raises ``CalledProcessError``."""
        run("chroot", self.files, "sh", "-c", script, env=self.environment)


def run(*words: object, **options: Any) -> None:
    """Run a command to its end. Raises ``CalledProcessError``; shows what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout)
        done.check_returncode()


def remove_people(etc: Path) -> None:
    """Remove users and groups that a base image does not have."""
    for names, more in (("passwd", ("shadow",)), ("group", ("gshadow",))):
        lines = (etc / names).read_text().splitlines()
        gone = {line.split(":")[0] for line in lines if int(line.split(":")[2]) in PEOPLE}
        for name in (names, *more):
            if (file := etc / name).exists():
                kept = [x for x in file.read_text().splitlines() if x.split(":")[0] not in gone]
                file.write_text("".join(f"{line}\n" for line in kept))


class Image:
    """What the steps have made: files, and how a container of them starts."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stages = folder, dict[str, Stage]()
        self.user, self.volume = "root", ""
        self.set: dict[str, str] = {}
        self.entry, self.command, self.health = list[str](), list[str](), list[str]()

    @property
    def stage(self) -> Stage:
        """The last stage."""
        return next(reversed(self._stages.values()))

    def build(self, dockerfile: str) -> None:
        """Carry out all steps. Raises ``ValueError`` for one that is not known here."""
        for step in steps(dockerfile):
            match step.name:
                case "FROM":
                    name = step.text.partition(" AS ")[2] or "last"
                    self._stages[name] = Stage(self._folder / name)
                case "COPY":
                    self._copy(step.text)
                case "RUN":
                    self.stage.shell(step.text)
                case "ENV":
                    name, _, text = step.text.partition("=")
                    self.set[name] = text
                case "USER":
                    self.user = step.text
                case "VOLUME":
                    self.volume = step.text
                case "HEALTHCHECK":
                    self.health = step.words
                case "ENTRYPOINT":
                    self.entry = step.words
                case "CMD":
                    self.command = step.words
                case _:
                    raise ValueError(f"unknown instruction: {step.name}")

    def _copy(self, text: str) -> None:
        *options, source, target = text.split()
        to = Path(f"{self.stage.files}{target}")
        if options:
            (name,) = (option.removeprefix("--from=") for option in options)
            shutil.copytree(f"{self._stages[name].files}{source}", to)
        else:
            ignored = (ROOT / ".dockerignore").read_text().split()
            shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns(*ignored))


@contextlib.contextmanager
def container(image: Image, volume: Path) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Run a container with *volume*; give its first process, and a function to run a command in it.

    It is killed at the end of the block, if it is still there.
    """
    files = image.stage.files
    inside = Path(f"{files}{image.volume}")
    if not volume.exists():
        # A named volume begins as a copy of what the image has there, owner and mode included.
        volume.mkdir()
        run("cp", "-aT", inside, volume)
    run("mount", "--bind", volume, inside)
    environment = {**image.stage.environment, "HOME": f"/home/{image.user}", **image.set}
    enter = ["chroot", f"--userspec={image.user}:{image.user}", str(files)]
    # In the new namespace, /proc must show its processes alone: the lock names its holder by pid.
    script = f'mount -t proc proc {files}/proc && exec {" ".join(enter)} "$@"'
    first = subprocess.Popen(
        ["unshare", "--pid", "--mount", "--fork", "--kill-child", "sh", "-c", script, "sh",
         *image.entry, *image.command],
        env=environment, text=True,
    )  # fmt: skip

    def inner() -> str:
        file = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        while not (children := file.read_text().split()):
            assert first.poll() is None, f"the container ended with {first.returncode}"
            time.sleep(0.01)
        return children[0]

    def execute(*words: str) -> subprocess.CompletedProcess[str]:
        namespaces = ["nsenter", "--target", inner(), "--pid", "--mount"]
        return subprocess.run(
            [*namespaces, *enter, *words], env=environment, capture_output=True, text=True
        )

    try:
        yield first, (inner, execute)
    finally:
        first.kill()
        first.wait()
        run("umount", inside)


def use(image: Image, folder: Path) -> None:
    """Run two containers on one volume. Raises ``AssertionError`` for what is not as promised."""
    volume = folder / "volume"
    for number in (1, 2):
        with container(image, volume) as (first, (inner, execute)):
            give_up = time.monotonic() + HEALTHY_SECONDS
            while execute(*image.health).returncode:
                assert first.poll() is None, f"the actor ended with {first.returncode}"
                assert time.monotonic() < give_up, "the actor does not become healthy"
                time.sleep(0.2)
            told = Path(f"/proc/{inner()}/status").read_text()
            (ids, in_namespace) = re.findall(r"^(?:Uid|NSpid):\s+(.*)$", told, re.MULTILINE)
            assert "0" not in ids.split(), f"it runs as root: {ids}"
            assert in_namespace.split()[-1] == "1", "it is not process 1 of its container"
            if number == 1:
                made = execute("python", "-c", STORE)
                assert made.returncode == 0, made.stderr
            shown = execute("hermes-actor", "sessions", "list", "--json")
            assert [row["id"] for row in json.loads(shown.stdout)] == ["kept"], shown
            # It would end its container.
            refused = execute("hermes-actor", "handoff")
            assert (refused.returncode, first.poll()) == (1, None), refused
            # `docker stop` sends it to process 1.
            os.kill(int(inner()), signal.SIGTERM)
            assert first.wait(HEALTHY_SECONDS) == 0
        for path in (volume, volume / "state.db"):
            found = path.stat()
            assert (found.st_uid, found.st_mode & 0o077) == (PEOPLE.start, 0), path


def main() -> int:
    """Build, run, and say what was done."""
    folder, *inside = map(Path, sys.argv[1:])
    if not inside:
        if any(folder.iterdir()):
            sys.exit(f"{folder} is not empty")
        # Nothing of what follows can reach the mounts of this machine.
        os.execvp(
            "unshare", ["unshare", "--mount", sys.executable, __file__, str(folder), "inside"]
        )
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    image = Image(folder)
    image.build((ROOT / "Dockerfile").read_text("utf-8"))
    assert image.user != "root"
    assert image.volume == image.set["HERMES_HOME"]
    use(image, folder)
    print(f"Dockerfile: every step runs; serves as {image.user} and process 1, in a volume, twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
