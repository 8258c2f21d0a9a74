"""The live view of `evenflow top`. Needs textual: only `evenflow top` imports this, when it is there."""

from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static, Tab, Tabs

from evenflow import Evenflow, EvenflowError
from evenflow.cli.overview import Look, Table, look, sorted_table, tables
from evenflow.cli.pausing import who_am_i
from evenflow.cli.texts import printable
from evenflow.cli.top import summary
from evenflow.store.engine import Engine

VIEWS = ("queues", "groups", "workers", "limits")


class TopView(App[None]):
    """Four tables over one line of summary; reads on a thread, so that a slow database never freezes the keys."""

    CSS = """
    #summary { height: 1; padding: 0 1; background: $primary-background; text-style: bold; }
    #said { height: 1; padding: 0 1; color: $text-muted; }
    Tabs { height: 2; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause/resume"),
        Binding("s", "sort", "sort"),
        Binding("space", "freeze", "stop/go"),
        Binding("r", "look", "look now", show=False),
        Binding("tab", "next_view", "next view", priority=True),
        *(Binding(str(number + 1), f"view('{name}')", name, show=False) for number, name in enumerate(VIEWS)),
    ]

    def __init__(self, engine: Engine, app: Evenflow, *, interval_s: float = 1.0) -> None:
        super().__init__()
        self._engine = engine
        self._app = app
        self._interval_s = interval_s
        self._seen: Look | None = None
        self._view = VIEWS[0]
        self._order: dict[str, str | None] = dict.fromkeys(VIEWS)
        self._is_frozen = False
        self._shown: Table | None = None

    def compose(self) -> ComposeResult:
        yield Static("looking …", id="summary", markup=False)
        yield Tabs(*(Tab(f"{number} {name}", id=name) for number, name in enumerate(VIEWS, start=1)))
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Static("", id="said", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.set_interval(self._interval_s, self._look_again)
        self.action_look()

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        if event.tab.id in VIEWS:
            self._view = event.tab.id
            self._show()

    def action_view(self, name: str) -> None:
        self.query_one(Tabs).active = name

    def action_next_view(self) -> None:
        self.action_view(VIEWS[(VIEWS.index(self._view) + 1) % len(VIEWS)])

    def action_freeze(self) -> None:
        self._is_frozen = not self._is_frozen
        self._say("stopped: space goes on" if self._is_frozen else "")

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, in the view's own order again."""
        if self._shown is None:
            return
        columns: list[str | None] = [None, *(header for header in self._shown.headers if header)]
        order = columns[(columns.index(self._order[self._view]) + 1) % len(columns)]
        self._order[self._view] = order
        self._say(f"sorted by {order}" if order else "in the order of names")
        self._show()

    def action_pause(self) -> None:
        """Pause the chosen queue, or resume it."""
        if self._view != "queues" or self._shown is None or not self._shown.keys:
            self._say("p pauses or resumes a queue: choose one in view 1")
            return
        self._turn(self._shown.keys[self.query_one(DataTable).cursor_row])

    @work(thread=True, exclusive=True, group="look")
    def action_look(self) -> None:
        """Look at the database, on a thread."""
        try:
            seen = look(self._engine)
        except EvenflowError as error:
            self.call_from_thread(self._say, f"{error}; trying again")
            return
        self.call_from_thread(self._take, seen)

    @work(thread=True, group="turn")
    def _turn(self, queue: str) -> None:
        try:
            if not self._app.resume(queue):
                self._app.pause(queue, who=who_am_i(), why="evenflow top")
                said = f"queue {queue!r} is paused"
            else:
                said = f"queue {queue!r} is served again"
        except EvenflowError as error:
            said = str(error)
        self.call_from_thread(self._say, said)
        self.call_from_thread(self.action_look)

    def _look_again(self) -> None:
        if not self._is_frozen:
            self.action_look()

    def _take(self, seen: Look) -> None:
        self._seen = seen
        self._write("#summary", summary(seen))
        self._show()

    def _say(self, text: str) -> None:
        self._write("#said", printable(text))

    def _write(self, where: str, text: str) -> None:
        for line in self.query(where).results(Static):  # none while the view is being closed
            line.update(text)

    def _show(self) -> None:
        if self._seen is None or not self.query(DataTable):
            return
        found = next(table for table in tables(self._seen) if table.name == self._view)
        self._fill(sorted_table(found, self._order[self._view]))

    def _fill(self, table: Table) -> None:
        """Put a table on the screen. The cursor stays with what it was on, not with its line."""
        widget = self.query_one(DataTable)
        chosen = None
        if self._shown is not None and self._shown.name == table.name and self._shown.keys:
            chosen = self._shown.keys[min(widget.cursor_row, len(self._shown.keys) - 1)]
        with self.batch_update():
            widget.clear(columns=True)
            for header in table.headers:
                label = Text(header.upper(), justify="right" if header in table.to_right else "left")
                if header and header == self._order[table.name]:
                    label.stylize("underline")
                widget.add_column(label)
            for line in table.lines:
                cells = zip(line, table.headers, strict=True)
                widget.add_row(
                    *(
                        Text(printable(cell.text), style=cell.colour or "", justify="right" if header in table.to_right else "left")
                        for cell, header in cells
                    )
                )  # fmt: skip
            if chosen in table.keys:
                widget.cursor_coordinate = Coordinate(table.keys.index(chosen), 0)
        self._shown = table
