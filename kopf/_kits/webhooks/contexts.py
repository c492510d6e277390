"""
Contexts: servers that can be used as functions and as context managers.
"""
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Self

from kopf._cogs.structs import reviews

ClientConfigs = AsyncIterator[reviews.WebhookClientConfig]


class WebhookContextManager:
    """
    A server whose resources are freed at the end of ``async with`` at the latest.

    Without ``async with``, the resources are freed when the iteration is cancelled or closed, or
    when the iterator is garbage-collected.
    """

    def __init__(self) -> None:
        super().__init__()
        self.__generators: list[AsyncGenerator[reviews.WebhookClientConfig, None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
            self,
            exc_type: type[BaseException] | None,
            exc_val: BaseException | None,
            exc_tb: TracebackType | None,
    ) -> None:
        while self.__generators:
            await self.__generators.pop().aclose()

    def __call__(self, fn: reviews.WebhookFn) -> ClientConfigs:
        generator = self._serve(fn)
        self.__generators.append(generator)
        return generator

    def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        raise NotImplementedError
