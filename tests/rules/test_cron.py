"""Cron: what clocks that change do to it, compared with a watcher of the clock on the wall; and what is refused."""

import itertools
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.rules.cron import NICKNAMES, cron_mistakes, explain, next_fire, zone_mistakes, zone_of
from tests.rules.cron_oracle import Expression, Window, expressions, windows

ZONES = [
    "America/New_York",  # the usual hour
    "Europe/Berlin",
    "Australia/Lord_Howe",  # half an hour
    "America/Sao_Paulo",  # at midnight
    "Asia/Beirut",  # at midnight, both ways
    "Africa/Casablanca",  # four times in some years
    "Antarctica/Troll",  # two hours
    "Pacific/Apia",  # a whole day was left out in 2011
]
YEARS = range(2011, 2026)
NEW_YORK = ZoneInfo("America/New_York")


def fires(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The chain of fires, each asked for from the one before."""
    found = []
    moment = next_fire(expression, zone, start)
    while moment <= end:
        found.append(moment)
        moment = next_fire(expression, zone, moment)
    return found


def assert_agrees(expression: str, window: Window) -> None:
    expected = window.fires(Expression(expression))
    assert fires(expression, window.zone, window.start, window.end) == expected, (expression, window.zone)


def utc(*numbers: int) -> datetime:
    return datetime(*numbers, tzinfo=UTC)  # type: ignore[arg-type,misc]


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_around_changes_of_the_clocks_no_fire_is_wrong_doubled_or_missed(zone: str) -> None:
    chance = random.Random(zone)
    for window in windows(zone, YEARS, timedelta(hours=9)):
        for expression in expressions(4, chance):
            assert_agrees(expression, window)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_far_from_changes_no_fire_is_wrong_doubled_or_missed(zone: str) -> None:
    chance = random.Random(zone + "!")
    for expression in expressions(3, chance):
        start = utc(2011, 1, 1) + timedelta(days=chance.randrange(15 * 365), minutes=chance.randrange(1440))
        assert_agrees(expression, Window(zone, start, start + timedelta(days=3)))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("zone", ZONES)
def test_300_expressions_over_15_years_agree_with_the_clock_on_the_wall(zone: str) -> None:
    chance = random.Random(300)
    wanted = expressions(300, chance)
    for window in windows(zone, YEARS, timedelta(hours=14)):
        for expression in wanted:
            assert_agrees(expression, window)
    for expression in wanted:
        start = utc(2011, 1, 1) + timedelta(days=chance.randrange(15 * 365), minutes=chance.randrange(1440))
        assert_agrees(expression, Window(zone, start, start + timedelta(days=3)))


def test_a_fixed_time_inside_the_gap_fires_once_right_after_it() -> None:
    found = fires("30 2 * * *", "America/New_York", utc(2026, 3, 7, 12), utc(2026, 3, 9, 12))
    assert [each.astimezone(NEW_YORK).isoformat() for each in found] == [
        "2026-03-08T03:00:00-04:00",
        "2026-03-09T02:30:00-04:00",
    ]


def test_several_fixed_times_inside_one_gap_are_one_fire() -> None:
    found = fires("0,15,45 2 * * *", "America/New_York", utc(2026, 3, 8, 5), utc(2026, 3, 8, 20))
    assert found == [utc(2026, 3, 8, 7)]


def test_a_fixed_time_inside_the_fold_fires_once_at_the_first_pass() -> None:
    found = fires("30 1 * * *", "America/New_York", utc(2026, 11, 1, 0), utc(2026, 11, 2, 0))
    assert found == [utc(2026, 11, 1, 5, 30)]


def test_every_hour_goes_on_by_elapsed_time_through_gap_and_fold() -> None:
    gap = fires("30 * * * *", "America/New_York", utc(2026, 3, 8, 5), utc(2026, 3, 8, 9))
    fold = fires("30 * * * *", "America/New_York", utc(2026, 11, 1, 4), utc(2026, 11, 1, 8))
    for found in (gap, fold):
        assert [later - sooner for sooner, later in itertools.pairwise(found)] == [timedelta(hours=1)] * 3


def test_inside_the_second_pass_of_a_fold_a_wildcard_finds_its_minutes_again() -> None:
    assert next_fire("*/15 1 * * *", "America/New_York", utc(2026, 11, 1, 5, 50)) == utc(2026, 11, 1, 6, 0)
    assert next_fire("*/15 1 * * *", "America/New_York", utc(2026, 11, 1, 6, 20)) == utc(2026, 11, 1, 6, 30)


def test_a_day_that_a_country_left_out_fires_at_its_end() -> None:
    found = fires("0 9 30 12 *", "Pacific/Apia", utc(2011, 12, 28), utc(2011, 12, 31, 12))
    assert found == [utc(2011, 12, 30, 10)]


def test_the_answer_is_told_in_the_zone_of_the_question() -> None:
    asked = datetime(2026, 6, 1, 12, tzinfo=NEW_YORK)
    answer = next_fire("0 13 * * *", "America/New_York", asked)
    assert (answer, answer.tzinfo) == (datetime(2026, 6, 1, 13, tzinfo=NEW_YORK), NEW_YORK)
    assert next_fire("0 13 * * *", NEW_YORK, asked) == answer


def test_a_slot_is_after_the_question_and_not_at_it() -> None:
    assert next_fire("* * * * *", "UTC", utc(2026, 1, 1)) == utc(2026, 1, 1, 0, 1)
    almost = utc(2026, 1, 1) - timedelta(microseconds=1)
    assert next_fire("* * * * *", "UTC", almost) == utc(2026, 1, 1)


def test_six_fields_begin_with_seconds() -> None:
    assert next_fire("*/10 * * * * *", "UTC", utc(2026, 1, 1, 0, 0, 1)) == utc(2026, 1, 1, 0, 0, 10)
    gap = next_fire("5 30 2 * * *", "America/New_York", utc(2026, 3, 8, 5))
    assert gap == utc(2026, 3, 8, 7)


@pytest.mark.parametrize("name", NICKNAMES)
def test_nicknames_are_what_they_stand_for(name: str) -> None:
    start = utc(2026, 2, 3, 4, 5)
    assert next_fire(name, "UTC", start) == next_fire(NICKNAMES[name], "UTC", start)


def test_days_by_number_and_by_weekday_are_either_unless_one_begins_with_a_star() -> None:
    assert fires("0 0 13 * 5", "UTC", utc(2026, 2, 5), utc(2026, 2, 21)) == [
        utc(2026, 2, 6), utc(2026, 2, 13), utc(2026, 2, 20),
    ]  # fmt: skip
    assert next_fire("0 0 */13 * 5", "UTC", utc(2026, 2, 14)) == utc(2026, 2, 27)


def test_a_question_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"naive .* write datetime\.now\(UTC\)"):
        next_fire("* * * * *", "UTC", datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 24 * * *", "field 2 (hour) is '24'; expected 0-23"),
        ("60 0 * * *", "field 1 (minute) is '60'; expected 0-59"),
        ("0 0 * 13 *", "field 4 (month) is '13'; expected 1-12 or JAN-DEC"),
        ("0 0 * * MONDAY", "field 5 (day of week) is 'MONDAY'; expected 0-7 or SUN-SAT"),
        ("0 0 * * * 8", "field 6 (day of week) is '8'"),
        ("*/0 * * * *", "field 1 (minute) is '*/0'"),
        ("* * *", "expected 5 fields"),
        ("", "expected 5 fields"),
        ("0 0 30 2 *", "no day matches it"),
        ("0 0 */31 2 MON#5", "no day matches it"),
        ("@fortnightly", "@hourly"),
        (7, "expected a text"),
        ("0 " * 200, "at most 200 characters"),
    ],
)
def test_a_bad_expression_is_told_with_its_place_and_what_to_write(expression: object, said: str) -> None:
    (mistake,) = cron_mistakes(expression)
    assert said in mistake


def test_every_bad_field_is_told_at_once() -> None:
    assert len(cron_mistakes("60 24 32 13 8")) == 5


@given(st.text(alphabet="0123456789*/,-#LWMONFRI @", max_size=20))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    if cron_mistakes(text):
        with pytest.raises(ValueError, match="cron"):
            next_fire(text, "Europe/Berlin", utc(2026, 1, 1))
    else:
        assert next_fire(text, "Europe/Berlin", utc(2026, 1, 1)) > utc(2026, 1, 1)
        assert explain(text)


def test_an_unknown_zone_is_refused_with_the_nearest_name() -> None:
    assert zone_mistakes("Europe/Berln") == [
        "timezone: there is no 'Europe/Berln'; did you mean 'Europe/Berlin'?"
    ]
    assert "install tzdata" in zone_mistakes("../etc/passwd")[0]
    assert "expected a name" in zone_mistakes(3)[0]
    assert zone_mistakes("Asia/Tokyo") == []
    with pytest.raises(ValueError, match="no time zone 'Mars/Base'"):
        zone_of("Mars/Base")


def test_an_expression_is_told_in_words() -> None:
    assert explain("30 2 * * *") == "At 02:30 every day"
    assert explain("@weekly") == "At 00:00 on Sunday"
