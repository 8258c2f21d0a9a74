"""Units on a borrowed connection, in a transaction that is somebody else's."""

import sqlite3

from evenflow.store import limits
from evenflow.store.borrowed import BorrowedEngine
from evenflow.store.sqlite import SqliteEngine
from tests.store.scene import Scene
from tests.store.test_limits import enqueue, keyed


def test_the_statements_of_a_unit_have_one_moment(sqlite_store: SqliteEngine) -> None:
    """A promotion knows what it has granted by its time: with another one for each statement nobody became ready."""
    scene = Scene(sqlite_store)
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    assert scene.states() == {first: "ready", second: "blocked"}
    connection = sqlite3.connect(str(sqlite_store.path), isolation_level=None)
    connection.execute("begin immediate")
    engine = BorrowedEngine(connection)
    engine.run("release_holds", {"ids": f"[{first}]"})
    assert limits.promote(engine, {"k"}) == {"default"}
    connection.execute("commit")
    connection.close()
    assert scene.states()[second] == "ready"
