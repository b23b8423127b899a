"""How durations, times and rates are read from the command line: as in the settings."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click

from coatcheck.config import parse_duration, parse_rate
from coatcheck.errors import ValidationError
from coatcheck.model import Rate, check_aware


def _duration(text: str) -> timedelta:
    is_number = text.strip().replace(".", "", 1).isdecimal()
    return parse_duration(float(text) if is_number else text, "it")


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(f"expected a time like 2030-01-31T08:00Z, found {text!r}") from None
    if found.utcoffset() is None:
        raise ValidationError(f"{text} has no time zone; add Z for UTC, or an offset like +02:00")
    return check_aware(found, "it")


def _rate(text: str) -> Rate:
    return parse_rate(text, "it")


def _kind(metavar: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """Return the arguments of ``click.option`` for a kind of value; a refused one is a usage error."""

    def convert(_: click.Context, __: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else read(text)
        except ValidationError as error:
            raise click.BadParameter(str(error)) from error

    return {"metavar": metavar, "callback": convert}


DURATION = _kind("DURATION", _duration)
INSTANT = _kind("TIME", _instant)
RATE = _kind("RATE", _rate)
