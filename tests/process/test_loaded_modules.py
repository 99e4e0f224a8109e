"""What the import of a client and the start of an actor load: every module is paid for each time.

The lists are what is needed, not what happens to be there. Adding to them slows the start of
every process of every agent.
"""

import re
import subprocess
import sys

from support.processes import run_python

OF_THE_CLIENT = {
    "hermes_actor", "hermes_actor._version", "hermes_actor.api", "hermes_actor.api.archive",
    "hermes_actor.api.base", "hermes_actor.api.change", "hermes_actor.api.gateway",
    "hermes_actor.api.maintenance", "hermes_actor.api.messages", "hermes_actor.api.provider",
    "hermes_actor.api.queries", "hermes_actor.api.sessions", "hermes_actor.compat",
    "hermes_actor.compat.init_errors", "hermes_actor.errors", "hermes_actor.ids",
    "hermes_actor.journal_mode", "hermes_actor.limits", "hermes_actor.paths",
    "hermes_actor.session_db", "hermes_actor.sqlite", "hermes_actor.store",
    "hermes_actor.store.columns", "hermes_actor.store.message_codec", "hermes_actor.store.queries",
    "hermes_actor.store.rows", "hermes_actor.store.search", "hermes_actor.store.search.query",
    "hermes_actor.store.sessions", "hermes_actor.store.sessions.page",
    "hermes_actor.store.sessions.title_text", "hermes_actor.store.surrogates",
    "hermes_actor.system", "hermes_actor.system.fork", "hermes_protocol",
    "hermes_protocol.operations", "hermes_protocol.values",
}  # fmt: skip

LIBRARIES_OF_THE_ACTOR = {
    "attr", "attrs", "click", "idna", "msgspec", "outcome", "sniffio", "sortedcontainers", "trio",
    "typing_extensions",
}  # fmt: skip

PARTS_OF_THE_ACTOR = {
    "__main__", "_version", "actor", "build", "cli", "client", "config", "engine", "errors",
    "exit_codes", "failpoints", "ids", "journal_mode", "limits", "paths", "recovery", "settings",
    "sqlite", "store", "system", "tools", "write_rules", "write_settings",
}  # fmt: skip

LOADED = """
import json, sys
before = set(sys.modules)
from hermes_actor import SessionDB
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_import_of_a_client_loads_nothing_that_reads_or_writes_a_file():
    loaded = set(run_python(LOADED))
    ours = {name for name in loaded if name.split(".")[0] in ("hermes_actor", "hermes_protocol")}
    assert ours == OF_THE_CLIENT
    libraries = {name.split(".")[0] for name in loaded - ours} - set(sys.stdlib_module_names)
    assert libraries == {"msgspec", "typing_extensions"}
    assert not loaded & {"asyncio", "subprocess", "shutil", "hashlib", "ssl", "dataclasses"}


def test_the_start_of_an_actor_loads_no_library_but_those_it_runs_on(path):
    command = [sys.executable, "-X", "importtime", "-P", "-m", "hermes_actor", "serve"]
    with subprocess.Popen(
        [*command, "--db", str(path), "--plain"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as actor:  # fmt: skip
        assert actor.stdout.readline().startswith("serving ")
        actor.terminate()
        _, said = actor.communicate(timeout=60)
    assert actor.returncode == 0, said
    loaded = set(re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", said, re.MULTILINE))
    roots = {name.split(".")[0] for name in loaded}
    ours, of_the_interpreter = {"hermes_actor", "hermes_protocol"}, {"sitecustomize", "org"}
    editable = {name for name in roots if name.startswith(("_distutils", "__editable__"))}
    known = set(sys.stdlib_module_names) | ours | of_the_interpreter | editable
    assert roots - known == LIBRARIES_OF_THE_ACTOR
    parts = {name.split(".")[1] for name in loaded if name.startswith("hermes_actor.")}
    assert parts <= PARTS_OF_THE_ACTOR
    assert {name for name in loaded if name.startswith("hermes_actor.client.")} == {
        "hermes_actor.client.reader"
    }
    assert not loaded & {"asyncio", "email", "http", "xml", "unittest", "zoneinfo"}
