"""Driving a conversation over a transport: each call is performed, each reply or error handed back."""

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any, TypeVar

from coatcheck.errors import ConfigError
from coatcheck.http.call import Call, Reply
from coatcheck.model import QueryContext, SubmitContext

#: A reply with a larger body (in bytes) is read away from the event loop.
LARGE = 256 * 1024

R = TypeVar("R")
Context = SubmitContext | QueryContext


def run(conversation: Generator[Call, Reply, R], context: Context) -> R:
    """Drive a conversation over ``context.transport`` and return its result."""
    transport = _transport(context)
    try:
        call = next(conversation)
        while True:
            try:
                reply = transport.perform(call, context.account)
            except Exception as error:  # noqa: BLE001  # the conversation raises it, or what it means
                call = conversation.throw(error)
            else:
                call = conversation.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        conversation.close()


async def run_async(conversation: Generator[Call, Reply, R], context: Context) -> R:
    """Drive a conversation over an async ``context.transport``, on this event loop; see ``run``."""
    transport = _transport(context)
    try:
        call = next(conversation)
        while True:
            try:
                reply = await transport.perform_async(call, context.account)
            except Exception as error:  # noqa: BLE001  # the conversation raises it, or what it means
                call = conversation.throw(error)
            else:
                if reply.file is not None or len(reply.body) > LARGE:
                    # Reading it may take as long as hundreds of other calls.
                    call = await asyncio.to_thread(_send, conversation, reply)
                else:
                    call = conversation.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result
    except _Done as done:
        kept: R = done.value
        return kept
    finally:
        # While a thread reads a reply that nobody waits for any more, the conversation cannot be closed.
        with contextlib.suppress(ValueError):
            conversation.close()


class _Done(Exception):  # noqa: N818  # no error: what StopIteration is to generators
    """Carries a conversation's result out of a thread: a StopIteration cannot leave one."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _send(conversation: Generator[Call, Reply, Any], reply: Reply) -> Call:
    try:
        return conversation.send(reply)
    except StopIteration as done:
        raise _Done(done.value) from None


def _transport(context: Context) -> Any:
    if context.transport is None:
        raise ConfigError(
            "an HttpHandler needs context.transport, found None; pass transport= to the worker or the context"
        )
    return context.transport
