"""AsyncAgentStore on asyncio and on trio: the subjects of AgentStore, to be awaited."""

import anyio
import pytest
from support.agent_stores import KEY

from hermes_actor import AgentStore, AsyncAgentStore
from hermes_actor.agents.vault import Vault
from hermes_actor.errors import BadValue

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_calls_are_those_of_the_store(tmp_path):
    options = {"mode": "embedded", "vault": Vault(KEY)}
    async with await AsyncAgentStore.open("a", tmp_path / "agents.db", **options) as store:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(_remember, store, number)
        assert len(await store.memories.search("deploys", limit=50)) == 20
        await store.secrets.set("KEY", "value")
        with pytest.raises(BadValue, match="content is a text, not 7"):
            await store.memories.put(7)
        assert await store.of("b").memories.list() == []
        with pytest.raises(AttributeError):
            store.nothing  # noqa: B018
    with AgentStore("a", tmp_path / "agents.db", **options) as same:
        assert same.secrets.get("KEY") == "value"


async def _remember(store, number):
    await store.memories.put(f"Deploys happen on day {number}.", key=f"k{number}")
