"""`simulated(...)`: a network for `launch`, from words or from a `Network`."""

from dataclasses import dataclass

from shardsim.network import Network
from shardsim.process_group import use_network
from shardsim.timeline_events import SimulatedEvents
from shardtrace import simulated_events


@dataclass(frozen=True)
class SimulatedNetwork:
    """A network that `launch` passes to its ranks. Each rank installs it before it makes its process group."""

    asked: Network | str
    backend: str = "simulated"

    def for_ranks(self, world_size: int) -> "SimulatedNetwork":
        """Return the same network for a job of `world_size` ranks. Raises ValueError if it has another number."""
        network = Network.parse(self.asked, world_size) if isinstance(self.asked, str) else self.asked
        if network.world_size != world_size:
            raise ValueError(f"the network has {network.world_size} ranks, and the job has {world_size}")
        return SimulatedNetwork(network)

    def install(self) -> None:
        """Use the network for all process groups that this rank makes from now on."""
        use_network(self.asked)
        simulated_events.plug_in(SimulatedEvents())


def simulated(network: Network | str) -> SimulatedNetwork:
    """Return a network for `launch(..., network=...)`.

    `network` is a `Network` or its words, such as "2x2 nodes, 1 GB/s inside, 100 MB/s between": see `shardsim.network`.
    `launch` reads the words when it knows the number of ranks, and raises ValueError if it can't read them.
    """
    return SimulatedNetwork(network)
