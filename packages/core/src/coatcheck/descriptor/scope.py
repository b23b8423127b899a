"""What a description may say where: the placeholders that each place knows, and checks of its plain texts.

All of it runs when the handler is made. Nothing here reads a reply or fills a call.
"""

import re

from coatcheck import codec
from coatcheck.codec.allowed import by_class
from coatcheck.codec.shape import fields_of
from coatcheck.codec.strict import kinds
from coatcheck.descriptor.plan import header_templates
from coatcheck.descriptor.reading import classes_of
from coatcheck.descriptor.tables import Descriptor
from coatcheck.descriptor.template import Scope, Template, resolver
from coatcheck.errors import ConfigError, UnknownNameError, UnsafeUrlError, closest
from coatcheck.http.address import split_base
from coatcheck.registry import HINT

_NAME = re.compile(r"[A-Za-z_]\w*")
_REGION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_HOST = re.compile(r"\.?[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
#: What may follow the scheme of an origin.
_PLACE = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

_QUERY_HINTS = {
    "request": 'A query does not load the request: store what it needs, keep = { name = "{request.…}" } in '
    "submit.",
    "idempotency_key": 'Store it, keep = { key = "{idempotency_key}" } in submit, and write {params.key}.',
    "secret": "Credentials stand in auth only.",
    "region": 'Write region = "…" beside key.',
    "url": "It is known in result.fetch only, with a url in result.",
}
_SUBMIT_HINTS = {
    "external_task_id": "It is known after the submit.",
    "params": "They are known after the submit.",
    "secret": "Credentials stand in auth only.",
    "region": 'Write region = "…" beside key.',
}
_AUTH_HINTS = dict.fromkeys(
    ("request", "params", "task_id", "idempotency_key", "external_task_id", "region"),
    "auth holds credentials; other headers stand in the headers of each call.",
)


def registered_type(name: str, where: str) -> type:
    """Return the registered type with this name.

    Raises:
        UnknownNameError: there is none; the message has the closest name.
        ConfigError: its values cannot be stored.
    """
    types = codec.registered_types()
    if name not in types:
        raise UnknownNameError(
            f"{where}: unknown type {name!r}{closest(name, types)} (known: "
            f"{', '.join(sorted(types))}). {HINT}",
            "type",
            name,
            tuple(sorted(types)),
        )
    codec.check_type(types[name])
    return types[name]


def base_url_of(descriptor: Descriptor) -> tuple[str, bool]:
    """Return the base URL, and whether the region is a part of it.

    Raises:
        ConfigError: it is no URL that paths can follow, or the region cannot stand in one.
    """
    where, region = f"{descriptor.key}: base_url", descriptor.region
    if region is not None and not _REGION.fullmatch(region):
        raise ConfigError(
            f"{descriptor.key}: region must be letters, digits, '-', '.' and '_', like 'eu-west-1', found "
            f"{region!r}"
        )
    scope = Scope({} if region is None else {"region": False}, _SUBMIT_HINTS)
    template = Template.of(descriptor.base_url, scope, where)
    base = str(template.text(resolver({"region": region}), quoted=True))
    try:
        split_base(base)
    except UnsafeUrlError as error:
        raise ConfigError(
            f"{where} must be an absolute http or https URL without user, query and fragment, like "
            f"https://api.vendor.example/v1; found {error.message}"
        ) from None
    return base, any(template.holes)


def hosts_of(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the allowed hosts.

    Raises:
        ConfigError: one is no host.
    """
    for host in descriptor.allowed_hosts:
        scheme, is_origin, name = host.partition("://")
        is_good = (
            _HOST.fullmatch(host) if not is_origin else scheme in ("http", "https") and _PLACE.fullmatch(name)
        )
        if not is_good:
            raise ConfigError(
                f"{descriptor.key}: allowed_hosts lists hosts, like 'files.vendor.example', all below one, "
                f"'.vendor.example', or an origin like 'http://10.0.0.7:9000' where it is not public; found "
                f"{host!r}"
            )
    return tuple(host.lower() for host in descriptor.allowed_hosts)


def auth_of(descriptor: Descriptor) -> dict[str, Template]:
    """Return the headers with credentials.

    Raises:
        ConfigError: one holds no secret, or something else beside it.
    """
    where = f"{descriptor.key}: auth"
    templates = header_templates(descriptor.auth, Scope({"secret": True}, _AUTH_HINTS), where)
    for template in templates.values():
        if not any(template.holes):
            raise ConfigError(
                f'{template.where} needs {{secret}}, like "Bearer {{secret}}", which is looked up in the '
                "account at each call; headers without credentials stand in the headers of each call, and a "
                "secret itself in no file"
            )
        for hole in template.holes:
            if hole.is_optional:
                raise ConfigError(
                    f"{template.where}: credentials cannot be optional; drop the ? of {hole.name}"
                )
    return templates


def words_of(descriptor: Descriptor) -> dict[str, str]:
    """Return the state that each word stands for.

    Raises:
        ConfigError: a word is in two lists, or no word ends a job.
    """
    where = f"{descriptor.key}: words"
    for name in ("succeeded", "failed"):
        if not getattr(descriptor.words, name):
            raise ConfigError(
                f"{where}.{name} must list at least one word of the vendor, else such a job is queried until "
                "its deadline"
            )
    return classes_of(descriptor.words, ("succeeded", "failed", "canceled", "submitted", "running"), where)


def submit_scope(request_type: type, region: str | None) -> Scope:
    """Return what placeholders may name in submit and lookup."""
    names = {
        f"request.{one.name}": any(kind is dict or codec.is_persistent(kind) for kind in kinds(one.type))
        for one in fields_of(by_class[request_type])
    }
    return Scope({**names, "idempotency_key": False, "task_id": False, **_region(region)}, _SUBMIT_HINTS)


def query_scope(descriptor: Descriptor) -> Scope:
    """Return what placeholders may name in query, cancel and fetch.

    Raises:
        ConfigError: a stored param cannot have its name.
    """
    submit = descriptor.submit
    kept = {**dict.fromkeys(submit.keep, "keep"), **dict.fromkeys(descriptor.query.params, "query.params")}
    for name in (*submit.params, *kept):
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{descriptor.key}: a stored param is named with letters, digits and _, found {name!r}"
            )
        if name == "region":
            raise ConfigError(
                f'{descriptor.key}: the param "region" is stored by itself where region is set; choose '
                "another name"
            )
    both = sorted(set(submit.params) & set(submit.keep))
    if both:
        raise ConfigError(
            f"{descriptor.key}: {both[0]!r} is in submit.params and in submit.keep; keep one of them"
        )
    names = {f"params.{name}": True for name in (*submit.params, *kept)}
    return Scope(
        {"external_task_id": False, "task_id": False, **names, **_region(descriptor.region)}, _QUERY_HINTS
    )


def _region(region: str | None) -> dict[str, bool]:
    return {} if region is None else {"region": False}
