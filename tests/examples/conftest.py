"""Fresh databases, as the client's tests have them."""

from tests.client.conftest import folder, sqlite_url

__all__ = ["folder", "sqlite_url"]
