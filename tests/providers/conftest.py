import pytest
from support.stores import Stores, chosen_kinds


@pytest.fixture(scope="session", params=chosen_kinds())
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def module_stores(kind):
    """Stores that the tests of a module share."""
    stores = Stores(kind)
    yield stores
    stores.close()


@pytest.fixture
def stores(kind):
    stores = Stores(kind)
    yield stores
    stores.close()


@pytest.fixture
def db(stores, tmp_path):
    return stores.open(tmp_path / "state.db")
