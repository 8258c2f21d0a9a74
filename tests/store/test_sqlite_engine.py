"""The SQLite engine: one file and many processes, and what it says about files that will not do."""

import contextlib
import fcntl
import gc
import os
import pwd
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from evenflow.clock import Clock
from evenflow.errors import StoreError, StoreRefused, StoreUnavailable
from evenflow.ids import IdSource
from evenflow.job import ENDS, State
from evenflow.store import filesystem
from evenflow.store import sqlite as module
from evenflow.store.borrowed import BorrowedEngine
from evenflow.store.engine import Steps, drive
from evenflow.store.enqueue import Enqueued, enqueue_steps
from evenflow.store.migrate import migrate
from evenflow.store.reads import counts, now_us
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import load_units
from tests.store.crowd import in_fork, in_processes, in_threads
from tests.store.scene import Scene, new_job, rows_of, second_engine


def enqueue_some(number: int, path: str, count: int) -> list[int]:
    """One of many processes that share a file: its job ids."""
    engine, ids = SqliteEngine(path), IdSource()
    try:
        return [
            job.id
            for turn in range(count)
            for job in drive(
                engine, enqueue_steps([new_job(payload=f"[{number},{turn}]", group=f"g{turn % 7}")], ids)
            )
        ]
    finally:
        engine.close()


def claim_and_finish(number: int, path: str, most: int) -> list[int]:
    """One of many workers that share a file: the jobs it ran."""
    scene = Scene(SqliteEngine(path))
    done = []
    try:
        while jobs := scene.claim(5, worker=number + 1):
            for job in jobs:
                assert scene.finish(job, worker=number + 1).lost == []
            done += [job.id for job in jobs]
        return done
    finally:
        scene.engine.close()


@pytest.mark.slow
def test_eight_processes_that_enqueue_500_each_lose_nothing(folder: Path) -> None:
    path = str(folder / "evenflow.db")
    engine = SqliteEngine(path)
    migrate(engine)
    engine.close()
    ids = [job for mine in in_processes(8, enqueue_some, path, 500) for job in mine]
    stored = {row["payload"]: row["id"] for row in rows_of(engine, "job")}
    assert len(stored) == len(set(ids)) == 4000
    assert set(stored) == {f"[{number},{turn}]" for number in range(8) for turn in range(500)}
    assert set(stored.values()) == set(ids)
    engine.close()


@pytest.mark.slow
def test_four_processes_that_drain_one_file_run_each_job_once(folder: Path) -> None:
    path = str(folder / "evenflow.db")
    scene = Scene(SqliteEngine(path))
    migrate(scene.engine)
    jobs = scene.enqueue(*(new_job(group=f"g{number % 9}") for number in range(400)))
    scene.engine.close()
    done = [job for mine in in_processes(4, claim_and_finish, path, 400) for job in mine]
    assert sorted(done) == jobs
    assert set(scene.states().values()) == {"succeeded"}
    scene.engine.close()


def test_many_threads_share_one_engine(sqlite_store: SqliteEngine) -> None:
    ids = IdSource()
    in_threads(8, lambda number: [drive(sqlite_store, enqueue_steps([new_job()], ids)) for _ in range(25)])
    assert counts(sqlite_store) == {"default": {"ready": 200}}


def test_commits_are_durable_and_readers_do_not_stop_writers(sqlite_store: SqliteEngine) -> None:
    with sqlite_store.reading() as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
        assert connection.execute("pragma synchronous").fetchone() == (2,)
    other = second_engine(sqlite_store)
    assert isinstance(other, SqliteEngine)
    with other.reading() as reader:
        reader.execute("begin")
        reader.execute("select count(*) from evenflow_job").fetchone()
        Scene(sqlite_store).enqueue(new_job())
        assert reader.execute("select count(*) from evenflow_job").fetchone() == (0,)
        reader.execute("rollback")
    other.close()


def test_a_writer_holds_the_lock_file_while_it_writes_and_no_longer(
    sqlite_store: SqliteEngine, folder: Path
) -> None:
    descriptor = os.open(folder / "evenflow.db.lock", os.O_RDWR)
    try:
        with sqlite_store.exclusive(), pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.pread(descriptor, 10, 0) == b"%-10d" % os.getpid()
    finally:
        os.close(descriptor)


def test_a_writer_reads_the_clock_under_the_lock_so_that_starts_are_not_dated_before_the_ends_they_follow(
    folder: Path,
) -> None:
    engine = SqliteEngine(str(folder / "evenflow.db"))
    migrate(engine)
    descriptor = os.open(folder / "evenflow.db.lock", os.O_RDWR)
    was_locked = []

    class Watched(Clock):
        def wall_us(self) -> int:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                was_locked.append(False)
            except BlockingIOError:
                was_locked.append(True)
            return super().wall_us()

    engine.clock = Watched()
    try:
        pause = {"name": "mail", "who": "ann", "why": "", "now": None}
        engine.run("pause_queue", pause)
        engine.run_all([("pause_queue", pause), ("pause_queue", pause)])
        assert was_locked == [True, True]
    finally:
        os.close(descriptor)
        engine.close()


def test_a_counted_unit_says_how_many_rows_it_wrote_here_and_on_a_caller_s_connection(
    sqlite_store: SqliteEngine,
) -> None:
    Scene(sqlite_store).enqueue(new_job())  # the band is there from now on
    lone = dict.fromkeys(load_units("sqlite")["enqueue_lone"].parameters)
    lone |= {
        "queue": "default",
        "priority": 0,
        "task": "t",
        "max_attempts": 1,
        "fails_on_crash": False,
        "payload": "[]",
    }
    assert [sqlite_store.run("enqueue_lone", {**lone, "id": number}) for number in (1, 1, 2)] == [
        [(1,)],
        [(0,)],
        [(1,)],
    ]
    with sqlite_store.exclusive() as connection:
        borrowed = BorrowedEngine(connection)
        assert [borrowed.run("enqueue_lone", {**lone, "id": number}) for number in (2, 3)] == [[(0,)], [(1,)]]


def test_a_read_needs_no_lock(sqlite_store: SqliteEngine, folder: Path) -> None:
    descriptor = os.open(folder / "evenflow.db.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert counts(sqlite_store) == {}
    finally:
        os.close(descriptor)


def test_a_caller_s_open_transaction_is_waited_for_and_then_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.05)
    engine = SqliteEngine(str(folder / "evenflow.db"))
    migrate(engine)
    caller = sqlite3.connect(folder / "evenflow.db", isolation_level=None)
    caller.execute("begin immediate")
    with pytest.raises(
        StoreUnavailable, match=r"SQLite: database is locked \(SQLITE_BUSY\); another program keeps"
    ):
        Scene(engine).enqueue(new_job())
    caller.execute("rollback")
    caller.close()
    assert len(Scene(engine).enqueue(new_job())) == 1
    engine.close()


def test_an_act_that_fails_is_rolled_back_and_the_engine_goes_on(sqlite_store: SqliteEngine) -> None:
    def fail() -> None:
        with sqlite_store.exclusive() as connection:
            connection.execute("insert into evenflow_band values ('q', 0)")
            raise KeyError("in the middle")

    with pytest.raises(KeyError):
        fail()
    assert rows_of(sqlite_store, "band") == []
    Scene(sqlite_store).enqueue(new_job())


def test_a_constraint_that_is_broken_is_refused_with_its_name(sqlite_store: SqliteEngine) -> None:
    with pytest.raises(StoreRefused, match=r"SQLite: .*\(SQLITE_CONSTRAINT_CHECK\)"):
        Scene(sqlite_store).enqueue(new_job(priority=101))


def test_a_live_job_has_one_of_the_states_that_are_no_ends(sqlite_store: SqliteEngine) -> None:
    (job,) = Scene(sqlite_store).enqueue(new_job())

    def can_be(state: str) -> bool:
        with contextlib.suppress(StoreRefused), sqlite_store.exclusive() as connection:
            connection.execute("update evenflow_job set state = ? where id = ?", (state, job))
            return True
        return False

    assert {state for state in [*State, ""] if can_be(state)} == set(State) - ENDS


def test_another_connection_s_commit_changes_the_data_version(sqlite_store: SqliteEngine) -> None:
    before = sqlite_store.data_version()
    assert sqlite_store.data_version() == before
    other = second_engine(sqlite_store)
    Scene(other).enqueue(new_job())
    assert sqlite_store.data_version() != before
    other.close()


def test_a_closed_engine_opens_again_when_it_is_used(sqlite_store: SqliteEngine) -> None:
    Scene(sqlite_store).enqueue(new_job())
    sqlite_store.close()
    sqlite_store.close()
    assert counts(sqlite_store) == {"default": {"ready": 1}}


@pytest.mark.parametrize("names", [("",), ("", "-wal", "-shm", ".lock")])
def test_a_file_that_is_deleted_while_it_is_open_takes_nothing_more(
    sqlite_store: SqliteEngine, names: tuple[str, ...]
) -> None:
    Scene(sqlite_store).enqueue(new_job())
    for name in names:
        os.unlink(f"{sqlite_store.path}{name}")
    with pytest.raises(StoreUnavailable, match="was deleted or replaced while it was open"):
        sqlite_store.run("beat", {"worker": 1, "lease_us": None, "about": None, "now": None})
    for name in ("-wal", "-shm"):  # what a file leaves behind that is deleted alone
        Path(f"{sqlite_store.path}{name}").unlink(missing_ok=True)
    migrate(sqlite_store)
    Scene(sqlite_store).enqueue(new_job())
    assert len(rows_of(sqlite_store, "job")) == 1


def looks_at_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are looked at from now on, for whether they lead to the same file."""
    looks: list[str] = []
    look = module._identity

    def noted(path: str) -> tuple[int, int] | None:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(module, "_identity", noted)
    return looks


@pytest.mark.parametrize("tells", [True, False])
def test_a_file_that_is_replaced_or_moved_with_its_folder_takes_nothing_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    monkeypatch.setattr(module, "tells_of_changes", lambda folder: tells)
    (folder / "above").mkdir()
    engine = SqliteEngine(str(folder / "above" / "evenflow.db"))
    migrate(engine)

    def replace() -> None:
        (folder / "above" / "other").touch()
        os.replace(folder / "above" / "other", folder / "above" / "evenflow.db")

    for act in (replace, lambda: (folder / "above").rename(folder / "elsewhere")):
        counts(engine)
        act()
        with pytest.raises(StoreUnavailable, match="was deleted or replaced while it was open"):
            counts(engine)
        (folder / "above").mkdir(exist_ok=True)
        for name in ("evenflow.db-wal", "evenflow.db-shm", "evenflow.db"):
            (folder / "above" / name).unlink(missing_ok=True)
        migrate(engine)
    engine.close()


def test_the_path_is_looked_at_again_only_after_something_has_happened_there(
    sqlite_store: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "tells_of_changes", lambda folder: True)
    sqlite_store.close()
    counts(sqlite_store)
    assert sqlite_store.path is not None
    looks = looks_at_paths(monkeypatch)
    Scene(sqlite_store).enqueue(new_job())
    assert looks == []
    os.chmod(sqlite_store.path, 0o600)
    assert counts(sqlite_store) == {"default": {"ready": 1}}
    assert counts(sqlite_store) == {"default": {"ready": 1}}
    assert looks == [sqlite_store.path]


def test_the_path_is_looked_at_each_time_where_the_system_does_not_tell(
    sqlite_store: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "tells_of_changes", lambda folder: False)
    sqlite_store.close()
    counts(sqlite_store)
    looks = looks_at_paths(monkeypatch)
    counts(sqlite_store)
    counts(sqlite_store)
    assert looks == [sqlite_store.path] * 2


def test_two_names_of_one_file_share_one_lock(sqlite_store: SqliteEngine, folder: Path) -> None:
    (folder / "link.db").symlink_to("evenflow.db")
    linked = SqliteEngine(str(folder / "link.db"))
    assert counts(linked) == {}
    assert not (folder / "link.db.lock").exists()
    assert linked.path == sqlite_store.path
    linked.close()


def test_a_file_stays_the_same_when_the_working_folder_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    engine = SqliteEngine("here.db")
    monkeypatch.chdir(folder / "elsewhere")  # as a program does that becomes a daemon
    migrate(engine)
    assert (folder / "here.db").exists() and list((folder / "elsewhere").iterdir()) == []
    engine.close()


def test_a_file_is_private_to_its_owner(sqlite_store: SqliteEngine, folder: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes["evenflow.db"] == modes["evenflow.db.lock"] == 0o600
    assert set(modes.values()) == {0o600}


def test_a_database_in_memory_lives_until_it_is_closed() -> None:
    engine = SqliteEngine(None)
    migrate(engine)
    scene = Scene(engine)
    scene.enqueue(new_job())
    assert len(scene.claim()) == 1
    engine.close()
    with pytest.raises(StoreRefused, match="no such table"):
        counts(engine)
    engine.close()


def test_a_forked_child_gets_handles_of_its_own_and_leaves_the_parent_s_alone(
    sqlite_store: SqliteEngine,
) -> None:
    Scene(sqlite_store).enqueue(new_job(queue="before"))

    def child() -> str:
        drive(sqlite_store, enqueue_steps([new_job(queue="child")], IdSource()))
        found = counts(sqlite_store)
        sqlite_store.close()
        return ",".join(sorted(found))

    assert in_fork(child) == "before,child"
    drive(sqlite_store, enqueue_steps([new_job(queue="after")], IdSource()))
    assert sorted(counts(sqlite_store)) == ["after", "before", "child"]


def test_children_forked_amid_the_writes_of_other_threads_can_write(sqlite_store: SqliteEngine) -> None:
    # A child that inherited a connection in the middle of a write would find the file locked for ever.
    ends = threading.Event()
    ids = IdSource()

    def write() -> None:
        while not ends.is_set():
            drive(sqlite_store, enqueue_steps([new_job(queue="parent") for _ in range(100)], ids))

    writers = [threading.Thread(target=write, daemon=True) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for number in range(20):
            steps = enqueue_steps([new_job(queue="child", payload=f"[{number}]")], IdSource())
            assert in_fork(partial(_count_enqueued, sqlite_store, steps)) == "1"
    finally:
        ends.set()
        for writer in writers:
            writer.join(30)
    found = [row["payload"] for row in rows_of(sqlite_store, "job") if row["queue"] == "child"]
    assert sorted(found) == sorted(f"[{number}]" for number in range(20))
    with sqlite_store.reading() as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_fork_inside_a_write_of_one_s_own_leaves_that_write_to_the_parent(
    sqlite_store: SqliteEngine,
) -> None:
    with sqlite_store.exclusive() as connection:
        connection.execute("insert into evenflow_band values ('mine', 0)")
        assert in_fork(lambda: "born") == "born"
    assert [row["queue"] for row in rows_of(sqlite_store, "band")] == ["mine"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at Linux's list of open files")
def test_a_forked_child_inherits_no_open_database(sqlite_store: SqliteEngine, folder: Path) -> None:
    # SQLite's own record of its locks would come along with it, but not the locks.
    Scene(sqlite_store).enqueue(new_job())

    def open_files() -> str:
        found = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return ",".join(path for path in found if path.startswith(str(folder)))

    assert open_files() != ""
    assert in_fork(open_files) == ""
    assert counts(sqlite_store) == {"default": {"ready": 1}}


def test_a_fork_keeps_a_database_in_memory() -> None:
    engine = SqliteEngine(None)
    migrate(engine)
    Scene(engine).enqueue(new_job())
    assert in_fork(lambda: "born") == "born"
    assert counts(engine) == {"default": {"ready": 1}}
    engine.close()


def test_an_engine_that_nobody_uses_is_let_go(folder: Path) -> None:
    engine = SqliteEngine(str(folder / "evenflow.db"))
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def _count_enqueued(engine: SqliteEngine, steps: Steps[list[Enqueued]]) -> str:
    return str(len(drive(engine, steps)))


def message(act: Callable[[], object]) -> str:
    with pytest.raises(StoreRefused) as refusal:
        act()
    return str(refusal.value)


def test_a_folder_that_does_not_exist_is_named(folder: Path) -> None:
    engine = SqliteEngine(str(folder / "missing" / "evenflow.db"))
    assert message(lambda: counts(engine)) == (
        f"SQLite: the folder '{folder}/missing' does not exist; create it, or correct the path"
    )


def test_a_file_that_cannot_be_made_is_named(folder: Path) -> None:
    path = folder / ("x" * 300)  # longer than a name may be
    assert message(lambda: counts(SqliteEngine(str(path)))) == (
        f"SQLite: the file '{path}' cannot be made: File name too long; choose another place"
    )


def test_a_folder_in_place_of_the_file_is_named(folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "link").symlink_to(folder / "jobs")
    told = [message(lambda path=folder / name: counts(SqliteEngine(str(path)))) for name in ("jobs", "link")]  # type: ignore[misc]
    assert told == [f"SQLite: '{folder}/jobs' is a folder; give the path of a file"] * 2


def test_a_file_that_is_no_database_is_refused(folder: Path) -> None:
    (folder / "letter.txt").write_text("Dear all, " * 500)
    engine = SqliteEngine(str(folder / "letter.txt"))
    assert "file is not a database" in message(lambda: counts(engine))


def test_a_lock_file_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "evenflow.db.lock").symlink_to(folder / "elsewhere")
    engine = SqliteEngine(str(folder / "evenflow.db"))
    assert "cannot open the lock file" in message(lambda: counts(engine))
    assert not (folder / "elsewhere").exists()


def test_a_network_file_system_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "_filesystem_type", lambda _: 0x6969)
    engine = SqliteEngine(str(folder / "evenflow.db"))
    assert message(lambda: counts(engine)) == (
        f"SQLite: '{folder}' is on NFS, where several hosts could write at once and corrupt the file; "
        "put the file on a local disk, or use PostgreSQL"
    )


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks Linux")
def test_the_kind_of_a_file_system_is_read_from_the_system(folder: Path) -> None:
    assert filesystem._filesystem_type(Path("/proc")) == 0x9FA0
    assert filesystem._filesystem_type(folder / "missing") is None


def test_a_file_is_opened_without_the_help_of_other_programs(
    sqlite_store: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    sqlite_store.close()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert counts(sqlite_store) == {}


def test_only_file_systems_that_nobody_changes_but_through_the_kernel_tell_of_all_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"ext4": 0xEF53, "FUSE": 0x65735546, "NFS": 0x6969, "unknown": None}
    found = {}
    for name, kind in kinds.items():
        monkeypatch.setattr(filesystem, "_filesystem_type", lambda _, kind=kind: kind)
        found[name] = filesystem.tells_of_changes(folder)
    assert found == {"ext4": sys.platform == "linux", "FUSE": False, "NFS": False, "unknown": False}


def without_privileges(act: Callable[[], object]) -> str:
    """What an ordinary user is told: root may write everywhere, so the child gives that up."""

    def child() -> str:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
            os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
        try:
            act()
        except StoreError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was refused"

    return in_fork(child)


def test_a_read_only_file_is_named(folder: Path) -> None:
    path = folder / "evenflow.db"
    path.touch(0o444)
    path.chmod(0o444)
    folder.chmod(0o777)
    assert without_privileges(lambda: counts(SqliteEngine(str(path)))) == (
        f"StoreRefused: SQLite: the file '{path}' is read-only; change its permissions, or choose another file"
    )


@pytest.mark.parametrize("exists", [False, True])
def test_a_read_only_folder_is_named(folder: Path, exists: bool) -> None:
    path = folder / "evenflow.db"
    if exists:
        path.touch()
        path.chmod(0o666)
    folder.chmod(0o555)
    try:
        told = without_privileges(lambda: counts(SqliteEngine(str(path))))
    finally:
        folder.chmod(0o755)
    assert (
        told
        == f"StoreRefused: SQLite: the folder '{folder}' is read-only; choose a place that can be written"
    )


def test_a_lock_file_of_another_user_is_refused(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs two users")
    path = folder / "evenflow.db"
    path.touch()
    path.chmod(0o666)
    (folder / "evenflow.db.lock").touch(0o600)
    folder.chmod(0o777)
    assert "cannot open the lock file" in without_privileges(lambda: counts(SqliteEngine(str(path))))


def test_a_library_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MINIMUM_VERSION", (99, 1, 0))
    with pytest.raises(StoreError, match=r"expected SQLite 99\.1\.0 or newer, got 3\."):
        SqliteEngine(None)


def test_nothing_is_opened_before_the_first_use(folder: Path) -> None:
    SqliteEngine(str(folder / "evenflow.db"))
    assert list(folder.iterdir()) == []


def test_the_clock_is_the_host_s(sqlite_store: SqliteEngine) -> None:
    assert now_us(sqlite_store) <= now_us(sqlite_store)
