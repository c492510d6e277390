"""
Sites: what a webhook server can know about its operator, and what it can ask the operator for.

Most servers need no site. A server that keeps its certificates in the cluster does.
"""
import asyncio
import dataclasses
from collections.abc import Callable

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api
from kopf._cogs.configs import configuration
from kopf._cogs.structs import reviews


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class Site:
    """The operator, as its webhook server sees it."""
    client: api.Client
    """This client also writes during a standby."""
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    wake: Callable[[], None]
    """Lets the operator write the configurations if they have changed, or if that is due."""
    config: reviews.WebhookClientConfig | None = None
    """How API servers reach the webhook server, as the webhook server has said last."""
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when ``is_writer`` or ``placed`` has changed."""
    is_writer: bool = False
    """Whether this replica writes the configurations; of all replicas, only one should."""
    is_helping: bool = False
    """
    Whether this replica writes the configurations even if it is not the writer: then, it creates
    none, and keeps the mark of the writer.
    """
    refresh: float | None = None
    """How often (seconds) the configurations are written again; None for never."""
    placed: reviews.WebhookClientConfig | None = None
    """The client configuration that this replica has written everywhere; None if it has not."""

    @property
    def helps(self) -> bool:
        return self.is_helping and not self.is_writer

    def reach(self, config: reviews.WebhookClientConfig) -> None:
        """Set how API servers reach the webhook server from now on."""
        self.config = config
        self.wake()

    def assign(self, *, is_writer: bool) -> None:
        """Set whether this replica is the writer. Others can have written since it was the last."""
        self.is_writer, self.placed = is_writer, None
        self.news.set()

    def ask(self, *, is_helping: bool, refresh: float | None) -> None:
        """Ask to write even if this replica is not the writer, and how often to write again."""
        if (self.is_helping, self.refresh) != (is_helping, refresh):
            self.is_helping, self.refresh = is_helping, refresh
            self.wake()

    def note(self, config: reviews.WebhookClientConfig | None) -> None:
        """Note that all configurations have this client configuration now."""
        if config != self.placed:
            self.placed = config
            self.news.set()


class SitedServer:
    """A webhook server that needs a site: the operator calls `settle` before the server itself."""
    site: Site | None = None

    def settle(self, site: Site) -> None:
        self.site = site
