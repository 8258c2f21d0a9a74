"""The diagrams of the manual: the states of a job, taken from the code, and who speaks to whom."""

from evenflow.job import ENDS, State
from tools.figures.drawing import Sheet

BOX, TALL = 112, 34
# Where each state that is no end stands: the middle of its box. A state without a place is an error.
PLACES: dict[State, tuple[float, float]] = {
    State.ARRIVING: (86, 96),
    State.WAITING: (86, 206),
    State.SCHEDULED: (86, 316),
    State.BLOCKED: (424, 96),
    State.READY: (424, 206),
    State.OVERFLOW: (424, 316),
    State.CLAIMED: (620, 96),
    State.RUNNING: (620, 206),
}
GATE = (254.0, 206.0)
COLOUR = {State.READY: "one", State.RUNNING: "three", State.SUCCEEDED: "three"}


def states() -> str:
    """The states of a job and how it gets from one to another."""
    missing = [state for state in State if state not in PLACES and not state.is_end]
    if missing:
        raise LookupError(f"no place for the states {', '.join(missing)}; give them one in PLACES")
    names = ", ".join(state.value for state in State)
    sheet = Sheet(
        940, 470, "The life of a job",
        f"The states of a job: {names}. A job is admitted, becomes ready, is claimed, runs, and ends; retries go back "
        "to scheduled, rescued jobs to ready.",
    )  # fmt: skip
    _state_edges(sheet)
    for state, (x, y) in PLACES.items():
        _state_box(sheet, state, x, y)
    sheet.rect(GATE[0] - 44, GATE[1] - TALL / 2, 88, TALL, "panel", "line-soft", round_by=17)
    sheet.write(GATE[0], GATE[1] + 5, "admit", "ink", at="middle")
    ends = sorted(ENDS, key=list(State).index)
    sheet.rect(778, 52, 140, 24 + 44 * len(ends), "panel", round_by=8)
    for number, state in enumerate(ends):
        _state_box(sheet, state, 848, 86 + 44 * number)
    note = "A job that does not run can also be cancelled, discarded, skipped or expire. One that runs is told to stop."
    sheet.write(470, 452, note, "soft", "small", at="middle")
    return sheet.text()


def _state_box(sheet: Sheet, state: State, x: float, y: float) -> None:
    colour = COLOUR.get(state, "soft")
    sheet.rect(x - BOX / 2, y - TALL / 2, BOX, TALL, "paper", f"line-{colour}", round_by=6)
    sheet.write(x, y + 5, state.value, "ink", at="middle")


def _state_edges(sheet: Sheet) -> None:
    half, low = BOX / 2, TALL / 2
    gate_x, gate_y = GATE
    arriving, waiting, scheduled = (
        PLACES[state] for state in (State.ARRIVING, State.WAITING, State.SCHEDULED)
    )
    blocked, ready, overflow = (PLACES[state] for state in (State.BLOCKED, State.READY, State.OVERFLOW))
    claimed, running = PLACES[State.CLAIMED], PLACES[State.RUNNING]
    sheet.line([(gate_x, 44), (gate_x, gate_y - low)], "line-soft", arrow=True)
    sheet.write(gate_x, 36, "enqueue", "ink", at="middle")
    sheet.line([(86, 44), (86, arriving[1] - low)], "line-soft", arrow=True)
    sheet.write(86, 36, "in your transaction", "ink", at="middle")
    sheet.line([(arriving[0] + half, 96), (gate_x - 30, gate_y - low)], "line-soft", arrow=True)
    sheet.write(182, 124, "committed", "soft", "small")
    sheet.line([(waiting[0] + half, 206), (gate_x - 44, 206)], "line-soft", arrow=True)
    sheet.write(146, 196, "steps done", "soft", "small")
    sheet.line([(scheduled[0] + half, 316), (gate_x - 30, gate_y + low)], "line-soft", arrow=True)
    sheet.write(186, 298, "due", "soft", "small")
    sheet.line([(gate_x + 44, 206), (ready[0] - half, 206)], "line-soft", arrow=True)
    sheet.line([(gate_x + 30, gate_y - low), (blocked[0] - half, 96)], "line-soft", arrow=True)
    sheet.write(372, 68, "key full, rate used, task shut", "soft", "small")
    sheet.line([(gate_x + 30, gate_y + low), (overflow[0] - half, 316)], "line-soft", arrow=True)
    sheet.write(372, 352, "queue over its bound", "soft", "small")
    sheet.line([(ready[0], blocked[1] + low), (ready[0], ready[1] - low)], "line-soft", arrow=True)
    sheet.write(432, 156, "has room", "soft", "small")
    sheet.line([(ready[0], overflow[1] - low), (ready[0], ready[1] + low)], "line-soft", arrow=True)
    sheet.write(432, 268, "has room", "soft", "small")
    sheet.line([(ready[0] + half, 200), (running[0] - half, 200)], "line-soft", arrow=True)
    sheet.write(522, 192, "claim", "soft", "small", at="middle")
    sheet.line([(running[0] - half, 214), (ready[0] + half, 214)], "line-soft", arrow=True)
    sheet.write(522, 232, "given back,", "soft", "small", at="middle")
    sheet.write(522, 247, "rescued", "soft", "small", at="middle")
    sheet.line([(ready[0] + half - 10, 189), (claimed[0] - half, 108)], "line-soft", arrow=True)
    sheet.write(496, 122, "prefetch", "soft", "small", at="middle")
    sheet.line([(claimed[0], 96 + low), (running[0], 206 - low)], "line-soft", arrow=True)
    sheet.write(628, 156, "slot free", "soft", "small")
    sheet.line([(running[0] + half, 206), (776, 206)], "line-soft", arrow=True)
    sheet.write(727, 196, "end, fenced", "soft", "small", at="middle")
    back = [(running[0], 206 + low), (running[0], 408), (86, 408), (86, 316 + low)]
    sheet.line(back, "line-soft", arrow=True)
    sheet.write(353, 400, "retry later, snooze: uses no slot while it waits", "soft", "small", at="middle")


def architecture() -> str:
    """Who speaks to whom: producers, the database, supervisors with their processes, operators."""
    sheet = Sheet(
        940, 452, "Who speaks to whom",
        "Your processes store jobs in the database. Each host runs evenflow worker: a supervisor with services, and worker "
        "processes that write ends and claim jobs in one round trip. They meet in the database only.",
    )  # fmt: skip
    sheet.write(26, 36, "Your processes", "ink", "head")
    _box(sheet, 24, 52, 210, 62, "web app", "enqueue(…, connection=…)")
    _box(sheet, 24, 130, 210, 62, "script, notebook", "task.enqueue_many([…])")
    _box(sheet, 24, 208, 210, 62, "whoever waits", "job.result(timeout=10)")
    sheet.write(26, 338, "Operators", "ink", "head")
    _box(sheet, 24, 354, 210, 62, "dashboard, command line", "look, pause, retry, set limits")
    _database(sheet)
    _host(sheet)
    for y, text in ((83, "in your commit"), (161, "one statement"), (239, "result, wake-up")):
        sheet.line([(234, y), (352, y)], "line-soft", arrow=True)
        sheet.write(293, y - 7, text, "soft", "small", at="middle")
    sheet.line([(352, 248), (238, 248)], "line-soft", arrow=True)
    sheet.line([(234, 385), (300, 385), (300, 300), (352, 300)], "line-soft", arrow=True)
    sheet.line([(606, 116), (524, 116)], "line-soft", arrow=True)
    sheet.line([(524, 126), (602, 126)], "line-soft", arrow=True)
    sheet.write(563, 94, "one round", "soft", "small", at="middle")
    sheet.write(563, 108, "trip", "soft", "small", at="middle")
    sheet.line([(524, 196), (602, 196)], "line-one", dash="4 3", arrow=True)
    sheet.write(563, 188, "wake", "one", "small", at="middle")
    sheet.line([(606, 290), (524, 290)], "line-soft", arrow=True)
    sheet.write(563, 282, "upkeep", "soft", "small", at="middle")
    sheet.write(
        470, 440, "There is no broker and no leader: processes meet in the database, and nowhere else.",
        "soft", "small", at="middle",
    )  # fmt: skip
    return sheet.text()


def _database(sheet: Sheet) -> None:
    sheet.write(438, 36, "SQLite or PostgreSQL", "ink", "head", at="middle")
    sheet.path("M352 70 v260 c0 24 172 24 172 0 v-260", "line-one", wide=2, arrow=False)
    sheet.path("M352 70 c0 -24 172 -24 172 0 c0 24 -172 24 -172 0", "line-one", wide=2, arrow=False)
    rows = ("jobs that are open", "history, by day", "turns of groups", "keys, rates, caps", "breakers, pauses",
            "schedules, workflows", "one heartbeat row", "per process")  # fmt: skip
    for number, text in enumerate(rows):
        sheet.write(438, 124 + 26 * number, text, "soft" if number else "ink", "small", at="middle")
    sheet.write(438, 374, "your own tables,", "soft", "small", at="middle")
    sheet.write(438, 390, "in the same commit", "soft", "small", at="middle")


def _host(sheet: Sheet) -> None:
    sheet.write(606, 36, "Every host: evenflow worker", "ink", "head")
    sheet.rect(606, 52, 310, 364, "open", "line-rule", round_by=8)
    _box(
        sheet,
        622,
        68,
        278,
        74,
        "worker process",
        "pump: ends and claims in batches",
        "slots: coroutines, threads",
    )
    _box(
        sheet,
        622,
        156,
        278,
        74,
        "worker process",
        "the same; as many as you say",
        "isolated bodies in processes of their own",
    )
    _box(
        sheet, 622, 248, 278, 152, "supervisor", "starts, watches and replaces processes", "",
        "dispatcher: due, arrived, expired", "scheduler: cron and intervals", "rescuer: jobs of dead workers",
        "spacer, pruner: turns, history",
    )  # fmt: skip


def _box(sheet: Sheet, x: float, y: float, width: float, height: float, title: str, *lines: str) -> None:
    sheet.rect(x, y, width, height, "panel", "line-soft", round_by=6)
    sheet.write(x + 12, y + 22, title, "ink")
    for number, text in enumerate(lines):
        sheet.write(x + 12, y + 43 + 18 * number, text, "soft", "small")
