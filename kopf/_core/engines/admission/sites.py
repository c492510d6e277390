"""
Sites: what a webhook server can know of the operator around it, and ask it for.

Most servers need none of it. A server that keeps its certificates in the cluster does.
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
    """Its writes are sent during a standby, too."""
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    wake: Callable[[], None]
    """Lets the operator write the configurations if they have changed, or if that is due."""
    config: reviews.WebhookClientConfig | None = None
    """By which the API server reaches the server, as it has said last."""
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when ``is_writer`` or ``placed`` has changed."""
    is_writer: bool = False
    """Whether this replica writes the configurations; of all replicas, only one should."""
    is_helping: bool = False
    """
    Whether this replica writes the configurations if it is not the writer: then, it creates none,
    and leaves the mark of the writer.
    """
    refresh: float | None = None
    """How often (seconds) the configurations are written again; None for never."""
    placed: reviews.WebhookClientConfig | None = None
    """The client configuration that this replica has written everywhere; None if it has not."""

    @property
    def helps(self) -> bool:
        return self.is_helping and not self.is_writer

    def reach(self, config: reviews.WebhookClientConfig) -> None:
        """Take by which the API server reaches the server from now on."""
        self.config = config
        self.wake()

    def assign(self, *, is_writer: bool) -> None:
        """Change the writer: what others have written in between is not known."""
        self.is_writer, self.placed = is_writer, None
        self.news.set()

    def ask(self, *, is_helping: bool, refresh: float | None) -> None:
        """Ask to write though this replica is not the writer, and to write again so often."""
        if (self.is_helping, self.refresh) != (is_helping, refresh):
            self.is_helping, self.refresh = is_helping, refresh
            self.wake()

    def note(self, config: reviews.WebhookClientConfig | None) -> None:
        """Note that this is written in all configurations."""
        if config != self.placed:
            self.placed = config
            self.news.set()


class SitedServer:
    """A webhook server that needs the site: the operator settles it there before it calls it."""
    site: Site | None = None

    def settle(self, site: Site) -> None:
        self.site = site
