"""The environment is found however hermes-agent was installed, and attached there.

The folders are laid out as uv, pipx and git lay them out; the tools themselves are not run.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import tree_of

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
VERSION = "0.19.0"
STORE = """
from hermes_state import SessionDB
db = SessionDB()
print(type(db._conn).__module__, SessionDB.__module__)
db.close()
"""
LAYOUTS = {
    "venv": ("env", "PYTHON -m pip install"),
    "uv tool": ("user/.local/share/uv/tools/hermes-agent", "uv tool install hermes-agent --with"),
    "pipx": ("user/.local/share/pipx/venvs/hermes-agent", "pipx inject hermes-agent"),
    "checkout": ("user/.hermes/hermes-agent/venv", "PYTHON -m pip install"),
}


def make_editable(host):
    """Move the program out of its environment, into a checkout that the environment names."""
    checkout = host.prefix.parent
    (checkout / ".git").mkdir()
    (info,) = host.purelib.glob("hermes_agent-*.dist-info")
    record = (info / "RECORD").read_text().splitlines()
    for name in {line.split(",")[0].split("/")[0] for line in record} - {".."}:
        if (host.purelib / name).exists() and not name.endswith(".dist-info"):
            shutil.move(host.purelib / name, checkout / name)
    line = "__editable__.hermes_agent.pth"
    (host.purelib / line).write_text(f"{checkout}\n")
    (info / "RECORD").write_text(f"{line},,\n{info.name}/METADATA,,\n")


@pytest.fixture(params=LAYOUTS)
def installed(request, make_host):
    host = make_host(VERSION, LAYOUTS[request.param][0])
    if request.param == "checkout":
        make_editable(host)
    host.script(STORE)
    return request.param, host


def files_of(host):
    """Every file of the environment, but what an interpreter compiles for itself."""
    found = tree_of(host.prefix)
    return {name: value for name, value in found.items() if "__pycache__" not in name}


def attach_from_elsewhere(host, *words, path, **variables):
    """Our command, run by another interpreter than that of the program."""
    return subprocess.run(
        [sys.executable, "-m", "hermes_actor", "attach", *words], cwd="/",
        env={**host.variables, "PATH": path, **variables}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def test_every_installation_is_found_attached_and_left_as_it_was(installed):
    layout, host = installed
    # By the link that the tool puts on the PATH, and by its usual place.
    links = host.user / "bin"
    links.mkdir()
    (links / "hermes").symlink_to(host.prefix / "bin" / "hermes")
    paths = [f"{links}:/usr/bin:/bin"] + ["/usr/bin:/bin"] * (layout != "venv")
    for path in paths:
        done = attach_from_elsewhere(host, "--check", "--json", path=path)
        found = json.loads(done.stdout)
        assert (found["python"], found["release"]) == (str(host.python), VERSION), done.stderr
    before = files_of(host)
    assert attach_from_elsewhere(host, path=paths[0]).returncode == 0
    assert host.script(STORE).stdout.split()[0].startswith("hermes_actor")
    assert attach_from_elsewhere(host, "--undo", path=paths[0]).returncode == 0
    assert files_of(host) == before
    assert host.script(STORE).stdout.split()[0] == "sqlite3"


def test_how_to_install_us_is_said_in_the_words_of_the_tool(installed):
    layout, host = installed
    host.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "hermes-actor")
    path = f"{host.prefix / 'bin'}:/usr/bin:/bin"
    for words in (("--check",), ()):
        done = attach_from_elsewhere(host, *words, path=path)
        said = LAYOUTS[layout][1].replace("PYTHON", str(host.python))
        assert done.returncode == 1
        assert f"{said} {ROOT}" in done.stdout + done.stderr
    assert not list(host.purelib.glob("hermes_actor_*"))


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="needs root, systemd and unshare"
)
def test_packages_of_a_container_that_cannot_be_written_are_named(make_host):
    """An image that is mounted read-only: root, no service manager, and a home in a volume."""
    host = make_host(VERSION)
    host.script(STORE)
    before = files_of(host)
    read_only = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", read_only, str(host.prefix),
         str(host.prefix / "bin" / "hermes-actor"), "attach"],
        env=host.variables, cwd="/", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    text = " ".join(done.stderr.split())
    assert f"the hook cannot be written to {host.purelib}: Read-only file system" in text
    assert "Traceback" not in done.stderr
    assert files_of(host) == before
    assert host.script(STORE).stdout.split()[0] == "sqlite3"
    host.actor("attach", "--check", code=1)
