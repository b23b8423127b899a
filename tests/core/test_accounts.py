"""Accounts: credentials are found at each call, never shown, and never mixed up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coatcheck.accounts import Accounts, key_of, part_of
from coatcheck.errors import ConfigError, UnknownNameError
from coatcheck.model import Account


def test_secret_is_read_from_the_variable_that_the_table_names() -> None:
    """``env:`` sources are read from the environment under the name that the table gives."""
    accounts = Accounts({"gitee": {"secret": "env:GITEE_KEY"}}, environ={"GITEE_KEY": "k-1"})
    assert accounts.get("gitee").secret() == "k-1"


def test_secret_is_read_from_a_file_without_its_line_end(tmp_path: Path) -> None:
    """Secret files end with a newline more often than not; it is no part of the secret."""
    file = tmp_path / "key"
    file.write_text("k-2\n", "utf-8")
    assert Accounts({"gitee": {"secret": f"file:{file}"}}, environ={}).get("gitee").secret() == "k-2"


def test_secret_may_come_from_a_function() -> None:
    """Secret stores of other makers are reached through a function."""
    assert Accounts({"gitee": {"secret": lambda: "k-3"}}, environ={}).get("gitee").secret() == "k-3"


def test_parts_are_looked_up_by_name() -> None:
    """Vendors that sign with two keys find both under one account."""
    table = {"cloud": {"secret": "env:S", "access_key": "env:A"}}
    account = Accounts(table, environ={"S": "s", "A": "a"}).get("cloud")
    assert (account.secret(), account.secret("access_key")) == ("s", "a")


@pytest.mark.parametrize("variable", ["COATCHECK_ACCOUNT_GITEE", "COATCHECK_ACCOUNT_GITEE__SECRET"])
def test_environment_works_without_a_table(variable: str) -> None:
    """One variable is enough to use a vendor; no file is needed."""
    assert Accounts(environ={variable: "k"}).get("gitee").secret() == "k"


def test_environment_wins_over_the_table() -> None:
    """The environment stands above the file, as for every setting."""
    environ = {"COATCHECK_ACCOUNT_GITEE": "from-environment", "K": "from-table"}
    assert (
        Accounts({"gitee": {"secret": "env:K"}}, environ=environ).get("gitee").secret() == "from-environment"
    )


def test_rotation_reaches_an_account_that_was_handed_out_before() -> None:
    """A secret is looked up at each call, so running tasks use the new one."""
    environ = {"COATCHECK_ACCOUNT_GITEE": "old"}
    account = Accounts(environ=environ).get("gitee")
    assert account.secret() == "old"
    environ["COATCHECK_ACCOUNT_GITEE"] = "new"
    assert account.secret() == "new"


def test_unknown_account_is_refused_with_the_closest_name_and_the_fix() -> None:
    """The message names the account that was meant and says where to configure the one that was asked for."""
    accounts = Accounts({"gitee": {"secret": "env:K"}}, environ={})
    with pytest.raises(UnknownNameError, match="did you mean 'gitee'") as caught:
        accounts.get("gittee").secret()
    assert caught.value.kind == "account"
    assert "COATCHECK_ACCOUNT_GITTEE" in str(caught.value)
    assert "[accounts.gittee]" in str(caught.value)


CUSTOMARY = {"secret": ("GITEE_API_KEY", "GITEE_KEY")}


def test_a_vendors_customary_variable_is_enough() -> None:
    """Who uses the vendor already has the variable of its own tools set, and need configure nothing."""
    assert Accounts(environ={"GITEE_KEY": "k"}).get("gitee", CUSTOMARY).secret() == "k"
    both = {"GITEE_KEY": "second", "GITEE_API_KEY": "first"}
    assert Accounts(environ=both).get("gitee", CUSTOMARY).secret() == "first"


@pytest.mark.parametrize(
    "environ",
    [
        {"COATCHECK_ACCOUNT_GITEE": "ours", "GITEE_API_KEY": "customary"},
        {"OURS": "ours", "GITEE_API_KEY": "customary"},
    ],
)
def test_an_account_of_our_own_wins_over_the_customary_variable(environ: dict[str, str]) -> None:
    """What was said about the account here counts, not what some other tool was told."""
    table = {"gitee": {"secret": "env:OURS"}} if "OURS" in environ else None
    assert Accounts(table, environ=environ).get("gitee", CUSTOMARY).secret() == "ours"


def test_no_identity_is_put_together_from_two_places() -> None:
    """A configured account that lacks a part does not borrow it from a variable of another identity."""
    accounts = Accounts({"gitee": {"user": lambda: "u"}}, environ={"GITEE_API_KEY": "of somebody else"})
    with pytest.raises(UnknownNameError, match="no 'secret' here"):
        accounts.get("gitee", CUSTOMARY).secret()


def test_the_advice_for_a_missing_secret_begins_with_the_customary_variable() -> None:
    """Whoever reads the vendor's own manual has seen that name."""
    with pytest.raises(UnknownNameError, match="Set GITEE_API_KEY or COATCHECK_ACCOUNT_GITEE, or write"):
        Accounts(environ={}).get("gitee", CUSTOMARY).secret()


def test_an_account_without_secrets_may_have_any_name() -> None:
    """A handler that needs no credentials runs without configuration, under the account of its limits."""
    assert Accounts(environ={}).get("this-machine").name == "this-machine"


def test_missing_part_names_the_parts_that_exist() -> None:
    """A handler that asks for another part shows which ones the account has."""
    account = Accounts({"cloud": {"secret": "env:S"}}, environ={"S": "s"}).get("cloud")
    with pytest.raises(UnknownNameError, match=r"no 'access_key' here \(parts in settings: secret\)"):
        account.secret("access_key")


def test_unset_variable_and_unreadable_file_are_unknown_accounts(tmp_path: Path) -> None:
    """What cannot be looked up here raises what makes a worker leave the step to others."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\xfdsecret")
    table: dict[str, dict[str, Any]] = {
        "unset": {"secret": "env:NOT_SET"},
        "gone": {"secret": f"file:{tmp_path}/gone"},
        "binary": {"secret": f"file:{binary}"},
        "blank": {"secret": lambda: ""},
    }
    accounts = Accounts(table, environ={})
    for name in table:
        with pytest.raises(UnknownNameError) as caught:
            accounts.get(name).secret()
        assert caught.value.kind == "account"


SECRET = "sk-live-0123456789"


@pytest.mark.parametrize(
    "source",
    [
        SECRET,
        f"env:{SECRET}",
        f"file:{SECRET}",
        "env:",
        "env:not a name",
        "file:relative/path",
        5,
        None,
        ["env:X"],
    ],
)
def test_whatever_is_not_a_source_is_refused_without_showing_it(source: object) -> None:
    """A secret pasted into configuration is refused, and the refusal does not repeat it."""
    with pytest.raises(ConfigError, match=r"env:VARIABLE|file:/path") as caught:
        Accounts({"gitee": {"secret": source}})  # type: ignore[dict-item]  # the wrong type is the point
    assert SECRET not in str(caught.value)


def test_a_secret_in_place_of_the_table_is_refused_without_showing_it() -> None:
    """``gitee = "sk-…"`` is the likeliest slip, and the message must not carry the secret on."""
    with pytest.raises(ConfigError, match="table of parts") as caught:
        Accounts({"gitee": SECRET})  # type: ignore[dict-item]  # the wrong type is the point
    assert SECRET not in str(caught.value)


def test_secrets_are_hidden_in_every_repr() -> None:
    """Neither the accounts nor one of them shows a secret when printed."""
    accounts = Accounts(environ={"COATCHECK_ACCOUNT_GITEE": SECRET})
    account = accounts.get("gitee")
    assert account.secret() == SECRET
    assert SECRET not in repr(accounts) + repr(account) + str(account) + repr(vars(accounts).keys())


@pytest.mark.parametrize(
    ("name", "other"), [("GITEE", "gitee"), ("gi-tee", "gi_tee"), ("gi__tee", "gi_tee"), ("客户", "_")]
)
def test_two_accounts_never_share_a_variable(name: str, other: str) -> None:
    """A name that would be folded into another account's variable does not get that account's secret."""
    accounts = Accounts(environ={f"COATCHECK_ACCOUNT_{other.upper()}": "k"})
    with pytest.raises(UnknownNameError):
        accounts.get(name).secret()


def test_part_of_one_account_is_not_the_secret_of_another() -> None:
    """The double underscore keeps the part ``two`` of ``gitee`` apart from the account ``gitee_two``."""
    accounts = Accounts(environ={"COATCHECK_ACCOUNT_GITEE__TWO": "part"})
    assert accounts.get("gitee").secret("two") == "part"
    with pytest.raises(UnknownNameError):
        accounts.get("gitee_two").secret()


@pytest.mark.parametrize("make", [lambda: Accounts({"": {}}), lambda: Accounts({"a\nb": {}})])
def test_names_that_no_task_could_carry_are_refused(make: Callable[[], Accounts]) -> None:
    """An account's name obeys the rule of every other name."""
    with pytest.raises(ConfigError, match="name must be"):
        make()


def test_a_server_without_a_key_is_one_without_an_account() -> None:
    """Where an account is there, a missing key is a mistake and not a server that needs none."""
    assert key_of(Accounts(environ={}).get("server")) is None
    assert key_of(Accounts(environ={"COATCHECK_ACCOUNT_SERVER": "key-1"}).get("server")) == "key-1"
    with pytest.raises(UnknownNameError):
        key_of(Accounts({"server": {"secret": "env:NOT_SET"}}, environ={}).get("server"))


def test_a_part_that_an_account_may_lack_is_none_where_it_is_missing_or_blank() -> None:
    """A blank part is no credential."""
    assert part_of(Accounts(environ={}).get("pair"), "second") is None
    assert part_of(Account("pair", lambda _: ""), "second") is None
    assert part_of(Account("pair", str.upper), "second") == "SECOND"
