"""
Contexts: servers that can be used as functions and as context managers.
"""
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from kopf._cogs.structs import reviews

ClientConfigs = AsyncIterator[reviews.WebhookClientConfig]


@dataclasses.dataclass(eq=False, repr=False)
class WebhookContextManager:
    """
    A server whose resources are freed at the end of ``async with`` at the latest.

    Without ``async with``, the resources are freed when the iteration is cancelled or closed, or
    when the iterator is garbage-collected.
    """

    __generators: list[AsyncGenerator[reviews.WebhookClientConfig, None]] = dataclasses.field(
        default_factory=list, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
