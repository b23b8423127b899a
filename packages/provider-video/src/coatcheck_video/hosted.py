"""What vendors have in common that serve the models of many makers, each with names of its own for inputs.

A vendor's handler has the names that most of its models share; the option ``names`` says others. No vendor
is known here and nothing does I/O.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field, frozen

from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck.http import VendorOptions
from coatcheck.http.options import text
from coatcheck_video.handler import VideoHandler
from coatcheck_video.model import VideoRequest

#: The fields of a request that may be inputs of a model.
INPUTS = tuple(
    attribute.name
    for attribute in attrs.fields(VideoRequest)
    if attribute.name not in ("mode", "model", "options")
)


def _names(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValidationError(
            f"names must be a mapping of fields to names of inputs, found {value!r}", "names"
        )
    for name, wire in value.items():
        if name not in INPUTS:
            raise UnknownNameError.of("field of a video request", str(name), INPUTS)
        if not isinstance(wire, str) or not wire.strip():
            raise ValidationError(
                f"names must say what the model calls {name}, as a text that is not blank, found {wire!r}",
                "names",
            )
    return dict(value)


@frozen(kw_only=True, eq=False)
class HostedOptions(VendorOptions):
    """Base of their options; ``extra`` holds further inputs of the model, by its own names."""

    #: What the model calls fields of the request, where it differs: ``{"first_frame": "start_image"}``.
    names: Mapping[str, str] | None = field(default=None, converter=_names)
    #: Where the vendor calls back, with ``{task_id}`` in it.
    callback_url: str | None = text(2000)


class HostedHandler(VideoHandler):
    """Base of their handlers; the inputs of a model are ``input_of(request)``."""

    #: Whether a field can be said is a matter of its name here.
    takes = frozenset(INPUTS)
    #: What most models call the fields of a request; a field without a name needs one in the options.
    names: ClassVar[Mapping[str, str]] = {}

    def validate(self, params: VideoRequest) -> None:
        """Refuse what the vendor could not be told; see ``VideoHandler.validate``."""
        super().validate(params)
        self.input_of(params)

    def input_of(self, request: VideoRequest) -> dict[str, Any]:
        """Return the inputs of the model: those in ``extra``, and over them what the request says.

        Raises:
            ValidationError: nobody knows what the model calls a field, or two fields have one name.
        """
        options = self.options(request)
        names = {**self.names, **options.get("names", {})}
        said: dict[str, Any] = {}
        for name in INPUTS:
            value = getattr(request, name)
            if value is None or value == ():
                continue
            if name not in names:
                raise ValidationError(
                    f"models of {self.key} have no common input for {name}; say what this one calls it, "
                    f"with options={{'names': {{{name!r}: '…'}}}}, or leave it out",
                    name,
                )
            if names[name] in said:
                raise ValidationError(
                    f"two fields of the request are called {names[name]!r}; leave one out or rename it",
                    name,
                )
            said[names[name]] = self.said(name, list(value) if isinstance(value, tuple) else value, options)
        return {**options.get("extra", {}), **said}

    def said(self, name: str, value: Any, options: VendorOptions) -> Any:
        """Return a field's value as models want it; by default as it is.

        Args:
            name: of the field.
            value: of the field; a list where there are several.
            options: of the request.
        """
        return value
