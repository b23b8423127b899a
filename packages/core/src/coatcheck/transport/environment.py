"""Proxies and certificates, from the environment as users of requests expect; read once, not per call."""

import os
import ssl
import threading
from pathlib import Path

import certifi
from requests.utils import get_environ_proxies, select_proxy

from coatcheck.errors import NotSentError


class Environment:
    """What ``HTTPS_PROXY``, ``NO_PROXY``, ``REQUESTS_CA_BUNDLE`` and ``CURL_CA_BUNDLE`` said at first."""

    def __init__(self) -> None:
        self._bundle = (
            os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or certifi.where()
        )
        self._proxies: dict[str, str | None] = {}
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()

    def proxy(self, origin: str) -> str | None:
        """Return the proxy for an origin, if any."""
        try:
            return self._proxies[origin]
        except KeyError:
            found = select_proxy(origin, get_environ_proxies(origin))
            if found and "://" not in found:
                found = f"http://{found}"
            return self._proxies.setdefault(origin, found or None)

    def tls(self) -> ssl.SSLContext:
        """Return the context that checks every certificate; made once, for it takes long.

        Raises:
            NotSentError: the bundle cannot be read.
        """
        if self._tls is None:
            with self._lock:
                if self._tls is None:
                    self._tls = self._new_tls()
        return self._tls

    def _new_tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        is_folder = Path(self._bundle).is_dir()
        try:
            context.load_verify_locations(
                cafile=None if is_folder else self._bundle, capath=self._bundle if is_folder else None
            )
        except (OSError, ssl.SSLError) as error:
            raise NotSentError(
                f"the certificates in {self._bundle} cannot be read ({type(error).__name__}); nothing was "
                "sent. Check REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE",
                code="bad_ca_bundle",
            ) from None
        return context
