"""The charts of the manual: what `runs` has seen and `claims` has measured, drawn."""

import math
from collections.abc import Sequence

from tools.figures.claims import ClaimCost, ClaimCosts
from tools.figures.drawing import Plot, Sheet, marks_up_to, stairs
from tools.figures.runs import Rated, Seen, Spans

NAMES = {"fifo": "First come, first served", "round-robin": "Fair turns"}
TENANTS = {"Ann": "one", "Bob": "two", "Cem": "three", "Dan": "four"}
ENGINES = {"PostgreSQL": "one", "SQLite": "two"}
WIDTH, LEFT, RIGHT = 760, 62, 24


def race(legs: Sequence[Seen]) -> str:
    """Bob's files over time, and how long Alice's page waits, under each order."""
    waits = [_wait(leg) for leg in legs]
    told = "; ".join(f"{NAMES[leg.fair]}: {_span(wait)}" for leg, (wait, _) in zip(legs, waits, strict=True))
    sheet = Sheet(
        WIDTH, 400, "Bob's 10,000 files and Alice's one page", f"How long Alice waits for her page. {told}."
    )
    most_x = max(leg.starts[-1][0] for leg in legs) * 1.02
    for number, (leg, (wait, before)) in enumerate(zip(legs, waits, strict=True)):
        top = 44 + 190 * number
        bobs = [moment for moment, name in leg.starts if name == "Bob"]
        came = leg.arrivals["Alice"]
        served = next(moment for moment, name in leg.starts if name == "Alice")
        plot = Plot(sheet, LEFT, top, WIDTH - LEFT - RIGHT, 112, most_x, len(bobs))
        plot.axes(marks_up_to(most_x), [0, len(bobs) / 2, len(bobs)], " s")
        curve = [(moment, place + 1.0) for place, moment in enumerate(bobs)][:: max(1, len(bobs) // 300)]
        curve.append((bobs[-1], float(len(bobs))))
        sheet.area(plot.at([(0, 0), *curve, (bobs[-1], 0)]), "rule")
        sheet.line(plot.at(curve), "line-one", wide=2)
        y = plot.y(len(bobs) * 0.5)
        sheet.line(
            [(plot.x(came), plot.top), (plot.x(came), plot.top + plot.height)], "line-alarm", dash="4 3"
        )
        if plot.x(served) - plot.x(came) > 12:
            sheet.line([(plot.x(came), y), (plot.x(served), y)], "line-alarm", wide=3)
        sheet.dot(plot.x(served), y, 5, "alarm")
        sheet.write(LEFT, top - 14, NAMES[leg.fair], "ink", "head")
        note = f"Alice waits {_span(wait)}: {before:,} of Bob's files are started before her page"
        sheet.write(WIDTH - RIGHT, top - 14, note, "alarm", at="end")
    sheet.write(
        LEFT,
        388,
        "blue: Bob's files, started so far · dashed: Alice enqueues one page · dot: it starts",
        "soft",
        "small",
    )
    return sheet.text()


def _wait(leg: Seen) -> tuple[float, int]:
    came = leg.arrivals["Alice"]
    served = next(moment for moment, name in leg.starts if name == "Alice")
    return served - came, sum(came < moment < served for moment, name in leg.starts if name == "Bob")


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def shares(legs: Sequence[Seen], columns: int = 66) -> str:
    """Who gets which share of the starts, over time, under each order."""
    sheet = Sheet(
        WIDTH, 420, "Four tenants share a queue",
        "Shares of the starts over time. First come, first served: one tenant after the other. "
        "Fair turns: all who wait share evenly, and Dan, with the weight 2, gets twice as much.",
    )  # fmt: skip
    for number, leg in enumerate(legs):
        top = 44 + 194 * number
        until = leg.starts[-1][0]
        plot = Plot(sheet, LEFT, top, WIDTH - LEFT - RIGHT, 112, until, 1)
        plot.axes(marks_up_to(until), [0, 0.5, 1], " s", percent=True)
        for column in range(columns):
            _stack(plot, leg, column * until / columns, (column + 1) * until / columns)
        for name, came in leg.arrivals.items():
            x = plot.x(came)
            sheet.line([(x, plot.top - 3), (x, plot.top + plot.height)], "line-paper", wide=3)
            sheet.line([(x, plot.top - 3), (x, plot.top + plot.height)], "line-ink", dash="3 3")
            sheet.write(x + 4, plot.top - 4, name, TENANTS[name], "small")
        sheet.write(LEFT, top - 22, NAMES[leg.fair], "ink", "head")
    x = float(LEFT)
    for name, colour in TENANTS.items():
        sheet.rect(x, 398, 12, 12, colour, round_by=2)
        label = f"{name}, weight 2" if name == "Dan" else name
        sheet.write(x + 18, 408, label, "soft", "small")
        x += 62
    sheet.write(WIDTH - RIGHT, 408, "dashed: a tenant comes with its backlog", "soft", "small", at="end")
    return sheet.text()


def _stack(plot: Plot, leg: Seen, since: float, until: float) -> None:
    inside = [name for moment, name in leg.starts if since <= moment < until]
    below = 0.0
    for name, colour in TENANTS.items() if inside else ():
        share = inside.count(name) / len(inside)
        if share:
            height = plot.y(below) - plot.y(below + share)
            plot.sheet.rect(
                plot.x(since), plot.y(below + share), plot.x(until) - plot.x(since) + 0.7, height, colour
            )
        below += share


def cap(seen: Spans) -> str:
    """How many bodies run, over two processes, under a cap."""
    first, later = seen.caps[0][1], seen.caps[-1][1]
    sheet = Sheet(
        WIDTH, 290, "A cap over all workers",
        f"Running jobs over time: never more than the cap of {first}, also when a worker process is killed, "
        f"and never more than {later} when the cap is raised.",
    )  # fmt: skip
    until = max(end for _, end in seen.runs)
    plot = Plot(sheet, LEFT, 52, WIDTH - LEFT - RIGHT, 172, until, later + 2)
    plot.axes(marks_up_to(until), range(0, later + 3, 2), " s")
    curve = stairs([(moment, float(count)) for moment, count in seen.running()], until)
    sheet.area(plot.at([(0, 0), *curve, (until, 0)]), "rule")
    sheet.line(plot.at(curve), "line-one")
    sheet.line(
        plot.at(stairs([(since, float(each)) for since, each in seen.caps], until)), "line-alarm", wide=2.5
    )
    sheet.write(plot.x(0) + 6, plot.y(first) - 7, f"max_concurrency={first}", "alarm", "code")
    raised = f"set_limit(…, max_concurrency={later})"
    sheet.write(WIDTH - RIGHT, plot.y(later) - 7, raised, "alarm", "code", at="end")
    x = plot.x(seen.killed_at)
    sheet.line([(x, plot.top), (x, plot.top + plot.height)], "line-ink", dash="4 3")
    sheet.write(x + 6, plot.top + 16, f"kill -9 of one worker, {seen.killed} jobs with it", "ink", "small")
    slots = f"{seen.processes} processes × {seen.slots} slots"
    sheet.write(LEFT, 30, "Jobs that run at the same time", "ink", "head")
    sheet.write(WIDTH - RIGHT, 30, f"{slots}, one capped queue", "soft", at="end")
    note = f"blue: bodies that run, {len(seen.runs)} in all, counted by themselves · red: the cap"
    sheet.write(LEFT, 272, note, "soft", "small")
    return sheet.text()


def rate(legs: Sequence[Rated]) -> str:
    """Starts under a rate: each of them, and how many lie in the window that ends at each moment."""
    most = legs[0].most
    sheet = Sheet(
        WIDTH, 400, "A rate over all workers",
        f"Starts over time under a rate of {most} per second: no window of one second holds more than {most}, "
        "whether they start at once or evenly spaced.",
    )  # fmt: skip
    until = max(leg.starts[-1] for leg in legs) + 0.15
    for number, leg in enumerate(legs):
        top = 44 + 186 * number
        plot = Plot(sheet, LEFT, top, WIDTH - LEFT - RIGHT, 96, until, most * 1.25)
        plot.axes(marks_up_to(until), [0, most / 2, most], " s")
        curve = [(moment, float(count)) for moment, count in leg.in_window() if moment < until]
        drawn = stairs(curve, until)
        sheet.area(plot.at([(0, 0), *drawn, (until, 0)]), "rule")
        sheet.line(plot.at(drawn), "line-one")
        sheet.line(plot.at([(0, most), (until, most)]), "line-alarm", wide=2.5)
        for start in leg.starts:
            x = plot.x(start)
            sheet.line([(x, plot.top + plot.height - 9), (x, plot.top + plot.height)], "line-ink", wide=1)
        code = f'Rate("{most}/second")' if leg.burst is None else f'Rate("{most}/second", burst={leg.burst})'
        sheet.write(LEFT, top - 14, code, "ink", "head")
        peak = max(count for _, count in leg.in_window())
        sheet.write(WIDTH - RIGHT, top - 14, f"most in any second: {peak}", "alarm", at="end")
    note = "ticks: starts · blue: how many in the second before · red: the rate"
    sheet.write(LEFT, 386, note, "soft", "small")
    return sheet.text()


def claim(costs: ClaimCosts) -> str:
    """What a claim takes against the backlog, which grows by powers of ten; from 0 up, so that level looks level."""
    told = "; ".join(f"{cost.engine}: {_told(cost)}" for cost in costs.engines)
    sheet = Sheet(
        WIDTH, 320, "A claim and the backlog",
        f"The median time of a claim of {costs.batch} jobs against the number of ready jobs. {told}.",
    )  # fmt: skip
    backlogs = [ready for ready, _ in costs.engines[0].points]
    most = 1.3 * max(ms for cost in costs.engines for _, ms in cost.points)
    plot = Plot(sheet, LEFT, 52, WIDTH - LEFT - RIGHT, 184, math.log10(backlogs[-1] / backlogs[0]) + 1, most)
    plot.rules(marks_up_to(most), " ms")
    for ready in backlogs:
        plot.mark(_decade(ready, backlogs[0]), f"{ready:,}")
    sheet.write(plot.x(plot.x_most / 2), 274, "ready jobs", "soft", "small", at="middle")
    lower_first = sorted(costs.engines, key=lambda cost: cost.points[0][1])
    for cost, beside in zip(lower_first, (19, -10), strict=True):  # numbers between the lines might meet
        _level(plot, cost, ENGINES[cost.engine], beside)
    sheet.write(LEFT, 30, f"Time of a claim of {costs.batch} jobs", "ink", "head")
    blocked = f"one blocked job to {costs.ready_per_blocked} ready ones"
    sheet.write(WIDTH - RIGHT, 30, f"{costs.groups:,} groups, {blocked}", "soft", at="end")
    note = f"dots: medians of {costs.rounds} claims, in stores that took turns · commits do not wait for the disk"
    sheet.write(LEFT, 304, note, "soft", "small")
    return sheet.text()


def _told(cost: ClaimCost) -> str:
    return ", ".join(f"{ms:.1f} ms with {ready:,}" for ready, ms in cost.points)


def _decade(ready: int, fewest: int) -> float:
    """Where a backlog stands: half a power of ten from the left, and one for each tenfold."""
    return math.log10(ready / fewest) + 0.5


def _level(plot: Plot, cost: ClaimCost, colour: str, beside: float) -> None:
    """The line of one engine, its numbers so far below it."""
    fewest = cost.points[0][0]
    dots = plot.at([(_decade(ready, fewest), ms) for ready, ms in cost.points])
    plot.sheet.line(dots, f"line-{colour}", wide=2)
    for (x, y), (_, ms) in zip(dots, cost.points, strict=True):
        plot.sheet.dot(x, y, 4, colour)
        plot.sheet.write(x, y + beside, f"{ms:.1f}", colour, "small", at="middle")
    x, y = dots[0]
    plot.sheet.write(x - 10, y + 4, cost.engine, colour, "small", at="end")
