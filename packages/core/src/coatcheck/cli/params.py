"""Types of command-line values: durations, times and rates, read as in the settings."""

from datetime import datetime, timedelta
from typing import Any

import click

from coatcheck.config import parse_duration, parse_rate
from coatcheck.errors import ValidationError
from coatcheck.model import Rate, check_aware


class _Duration(click.ParamType[timedelta]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, str) and value.strip().replace(".", "", 1).isdecimal():
            value = float(value)
        try:
            return parse_duration(value, "it")
        except ValidationError as error:
            self.fail(str(error), param, ctx)


class _Instant(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"expected a time like 2030-01-31T08:00Z, found {value!r}", param, ctx)
        try:
            return check_aware(found, "it")
        except ValidationError:
            self.fail(f"{value} has no time zone; add Z for UTC, or an offset like +02:00", param, ctx)


class _Rate(click.ParamType[Rate]):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Rate:
        try:
            return value if isinstance(value, Rate) else parse_rate(value, "it")
        except ValidationError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()
INSTANT = _Instant()
RATE = _Rate()
