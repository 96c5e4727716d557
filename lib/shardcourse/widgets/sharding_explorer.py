"""A widget that shows the elements each rank holds: choose a strategy, and go through a step moment by moment.

The data were recorded on four real ranks (see `sharding_record`) when the widget was made. The slider runs nothing.
"""

from collections.abc import Mapping, Sequence

from shardcourse.widgets.base import Pane, choice, slider
from shardcourse.widgets.sharding_picture import sharding
from shardcourse.widgets.sharding_record import Held, layout, record_all

AT_REST = "before the step"


class ShardingExplorer(Pane):
    """A widget over `stories`, a result of `sharding_record.record_all`. If left out, it is recorded now, in 2 s."""

    def __init__(
        self,
        stories: Mapping[str, Sequence[Mapping[str, Held]]] | None = None,
        *,
        strategy: str = "FULL_SHARD",
        moment: str = "forward of blocks.1",
    ) -> None:
        self.stories = stories or record_all()
        moments = list(next(iter(self.stories.values()))[0])
        self.strategy = choice("Strategy", self.stories, strategy)
        self.moment = choice("Moment", moments, moment)
        super().__init__("Sharding explorer", [self.strategy, slider(self.moment)])
        for control in (self.strategy, self.moment):
            control.observe(lambda change: self.draw(), names="value")
        self.draw()

    def draw(self) -> None:
        ranks = self.stories[self.strategy.value]
        held = [rank[self.moment.value] for rank in ranks]
        title = f"{self.strategy.value}: {self.moment.value}"
        figure = sharding(held, [rank[AT_REST] for rank in ranks], layout(), title)
        self.show(figure, f"{title}. {in_words(held)}")


def in_words(held: Sequence[Held]) -> str:
    """Return in words how many elements of the model each rank holds."""
    n = max(end for _, end in layout().values())
    kinds = {
        "parameters": "parameters",
        "gradients of its own samples": "local_gradients",
        "mean gradients": "gradients",
        "optimizer states": "optimizer_states",
    }
    counts = {name: [rank.count(kind) for rank in held] for name, kind in kinds.items()}
    shown = [f"{name} {', '.join(map(str, by_rank))}" for name, by_rank in counts.items() if any(by_rank)]
    return f"Of the {n} elements of each kind, ranks 0 to {len(held) - 1} hold: {'; '.join(shown)}."
