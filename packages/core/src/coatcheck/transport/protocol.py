"""What a transport is: the protocol, its async form, and how long connections are waited for and kept."""

from typing import Protocol

from coatcheck.http import Call, Reply
from coatcheck.model import Account

#: How long to wait for a connection, in seconds.
CONNECT_TIMEOUT = 10.0
#: A connection that idled for longer (in seconds) is not used for a submit: the vendor may be closing it at
#: this moment, and a submit that meets a closed connection has an unknown outcome.
FRESH = 1.0
#: A connection that idled for longer (in seconds) is closed.
IDLE = 60.0


class Transport(Protocol):
    """Performs calls; may be used by many threads at once."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Send the call once, signed last, and return whatever the vendor answered.

        No retry, no redirect, no cookie, and no credentials but those that ``call.sign`` adds.

        Raises:
            NotSentError: the vendor certainly saw nothing (the name, the connection or TLS failed).
            MaybeSentError: the vendor may have seen it (reset, timeout, cut-off reply).
            VendorError: the reply's body is over the call's cap.
            UnsafeUrlError: the call is ``guarded`` and does not lead to a public address; nothing was sent.
            ConfigError: a secret that ``call.sign`` asked for is not configured here; nothing was sent.
        """
        ...

    def close(self) -> None:
        """Close every connection; the transport must not be used afterwards."""
        ...


class AsyncTransport(Transport, Protocol):
    """A transport that performs calls on event loops too; a worker uses the one that it runs."""

    async def perform_async(self, call: Call, account: Account) -> Reply:
        """Do what ``perform`` does, on the running event loop; cancelled, it breaks the connection off."""
        ...

    async def leave(self) -> None:
        """Close what was opened on the running event loop, which is about to end."""
        ...
