"""Install the built packages as a user does, and use them; then run the steps of the Dockerfile.

``make dist`` builds wheel and sdist into ``dist/`` and runs this. Each package goes into a clean
environment of its own, in which README's ten lines and a few commands must work. Root carries out
the whole ``Dockerfile``: see ``check_image.py``. Any other user starts the actor with its words; it
must become healthy, and must end with 0 when it gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
HEALTHY_SECONDS = 60.0


def main() -> int:
    """Check every package of ``dist/``; return 0 if all of them work."""
    packages = [*(ROOT / "dist").glob("*.whl"), *(ROOT / "dist").glob("*.tar.gz")]
    if len(packages) != 2:
        sys.exit(f"dist/ must hold one wheel and one sdist: {packages}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # another user runs the program from it below
        for package in packages:
            program = install(package, folder / package.suffix.strip("."))
            use(program, folder / f"home-{package.suffix.strip('.')}")
            print(f"{package.name}: installs, and README's ten lines work")
        if os.getuid() == 0 and may_mount():
            (folder / "image").mkdir()
            image = [sys.executable, str(ROOT / "stress" / "check_image.py"), str(folder / "image")]
            subprocess.run(image, check=True)
        else:
            run_container_steps(program, folder / "volume")
    return 0


def may_mount() -> bool:
    """Return True if overlays can be mounted in a namespace of their own."""
    with tempfile.TemporaryDirectory() as name:
        mount = f"mount -t tmpfs t {name} && cd {name} && mkdir u w m && mount -t overlay o m"
        script = f"{mount} -o lowerdir=/,upperdir=u,workdir=w"
        try:
            done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True)
        except FileNotFoundError:
            return False
    return done.returncode == 0


def install(package: Path, folder: Path) -> Path:
    """Install into a clean environment; return the program."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", str(package)], check=True)
    return folder / "bin" / "hermes-actor"


def use(program: Path, home: Path) -> None:
    """Run README's ten lines, and commands on their store. Raises ``CalledProcessError``."""
    home.mkdir(mode=0o700)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    environment = {**os.environ, "HERMES_HOME": str(home), "HERMES_ACTOR_IDLE_EXIT": "5"}

    def run(*words: object) -> str:
        done = subprocess.run(
            [*map(str, words)],
            cwd=home,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    promised = "demo assistant The >>>lint<<< step fails."
    assert run(program.with_name("python"), "-P", "-c", example).strip() == promised
    store = home / "demo.db"
    assert json.loads(run(program, "sessions", "list", "--db", store, "--json"))[0]["id"] == "demo"
    assert "1 of 1 hit" in run(program, "search", "red", "--db", store)
    assert run(program, "version").startswith("hermes-actor, version ")
    run(program, "backup", "--db", store)
    run(program, "stop", "--db", store)


def words_of(dockerfile: str, instruction: str) -> list[str]:
    """Return the words of an instruction in its JSON form."""
    (found,) = re.findall(rf"^{instruction} .*?(\[.*\])$", dockerfile, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def run_container_steps(program: Path, home: Path) -> None:
    """Start the actor as the image does, wait until it is healthy, and stop it as Docker does."""
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    (volume,) = re.findall(r"^VOLUME (\S+)$", dockerfile, re.MULTILINE)
    assert f"ENV HERMES_HOME={volume}\n" in dockerfile
    assert re.search(r"^USER (?!root)", dockerfile, re.MULTILINE)
    home.mkdir(mode=0o700)
    environment = {**os.environ, "HERMES_HOME": str(home), "HOME": str(home)}

    def start(words: list[str]) -> subprocess.Popen[bytes]:
        assert words[0] == program.name
        return subprocess.Popen(
            [str(program), *words[1:]], env=environment, cwd="/",
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    entry = words_of(dockerfile, "ENTRYPOINT") + words_of(dockerfile, "CMD")
    actor = start(entry)
    try:
        give_up = time.monotonic() + HEALTHY_SECONDS
        while start(words_of(dockerfile, "HEALTHCHECK")).wait(HEALTHY_SECONDS):
            assert actor.poll() is None, f"the actor ended with {actor.returncode}"
            assert time.monotonic() < give_up, "the actor does not become healthy"
            time.sleep(0.2)
        actor.send_signal(signal.SIGTERM)
        assert actor.wait(HEALTHY_SECONDS) == 0
    finally:
        actor.kill()
    print("Dockerfile: its words serve, are healthy, and drain at SIGTERM (not built)")


if __name__ == "__main__":
    sys.exit(main())
