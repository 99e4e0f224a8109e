"""Files with keys that cannot be used: a typed error that names the file, and nothing changed."""

import pytest
from support.agent_stores import open_agents

from hermes_actor.agent_store.key_files import ensure_key, rekey
from hermes_actor.agents.vault import KEY_VARIABLES, Vault
from hermes_actor.errors import NotConfigured


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def new_key_file(folder, kind):
    file = folder / "new.key"
    if kind == "folder":
        file.mkdir(mode=0o700)
    elif kind == "link to nothing":
        file.symlink_to(folder / "missing" / "key")
    else:
        file.write_bytes(b"\xff\xfe" * 20 if kind == "binary" else b"c2hvcnQ=")
        file.chmod(0o644 if kind == "open to others" else 0o600)
    return file


@pytest.mark.parametrize(
    "kind", ["folder", "link to nothing", "binary", "too short", "open to others"]
)
def test_new_key_that_cannot_be_used_changes_nothing(tmp_path, kind):
    present = tmp_path / "agents.key"
    ensure_key(present)
    before = present.read_text()
    with open_agents("embedded", tmp_path / "agents.db", vault=Vault(before)) as store:
        store.of("a").secrets.set("KEY", "walrus")
        with pytest.raises(NotConfigured, match=r"new\.key|bytes") as caught:
            rekey(store, new_key_file(tmp_path, kind))
        assert "walrus" not in str(caught.value)
        assert store.of("a").secrets.get("KEY") == "walrus"
        store.of("a").secrets.set("KEY", "again")  # nothing waits
    assert present.read_text() == before
