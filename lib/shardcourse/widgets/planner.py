"""A planner widget: choose model, cluster and strategy, and see memory, step time and what limits them.

The figures come from `shardplan`, which includes activations, allocator and links. The same choices on the command line
give the same answer. There are three views: memory over a step, peak memory of each sharding, and the step time.
"""

from collections.abc import Iterable
from contextlib import suppress

import ipywidgets
from matplotlib.figure import Figure

from shardcourse.figures import planned_memory, planned_stacks, step_parts
from shardcourse.widgets.base import Pane, choice, slider
from shardlab.model import PRESETS
from shardplan.advice.bottleneck import memory_in_words, time_in_words
from shardplan.api import figures_of, plan_of, setup_of
from shardplan.planned_job import Setup
from shardplan.records import Plan
from shardplan.strategy import CHOICES
from shardplan.tables import speed_line, verdict
from shardsim.machines import MACHINES

OVER_A_STEP, SHARDINGS, TIME = "memory over a step", "memory of each sharding", "time of a step"
GPUS = [2**i for i in range(15)]
VALUES = CHOICES | {  # of the fields that have a control; the other fields keep their given values
    "micro_batch": [2**i for i in range(7)],
    "seq_len": [512 * 2**i for i in range(9)],
    "tensor": [1, 2, 4, 8],
    "pipeline": [1, 2, 4, 8, 16],
}
CONTROLS = ("sharding", "micro_batch", "seq_len", "precision", "recompute", "cross_entropy", "optimizer", "offload")
CONTROLS += ("tensor", "pipeline")
SLIDERS = ("micro_batch", "seq_len")


class Planner(Pane):
    """A widget that shows the plan of the chosen job. `plan` is the plan that is shown.

    Raises ValueError, like `shardplan.plan`, if the initial choices don't go together.
    """

    def __init__(
        self,
        model: str = "8B",
        machine: str = "dgx-h100",
        gpus: int = 8,
        *,
        models: Iterable[str] = PRESETS,
        view: str = OVER_A_STEP,
        **strategy,
    ) -> None:
        first = setup_of(model, machine, gpus, **strategy)
        self._given = strategy
        self.view = choice("View", (OVER_A_STEP, SHARDINGS, TIME), view)
        self.model = choice("Model", dict.fromkeys([*models, model]), model)
        self.machine = choice("Machine", dict.fromkeys([*MACHINES, machine]), machine)
        self.gpus = choice("GPUs", sorted({*GPUS, gpus}), gpus)
        self.strategy = {name: _control(name, getattr(first.strategy, name)) for name in CONTROLS}
        shown = [slider(control) if name in SLIDERS else control for name, control in self.strategy.items()]
        super().__init__("Planner", [self.view, self.model, self.machine, slider(self.gpus), *shown])
        for control in (self.view, self.model, self.machine, self.gpus, *self.strategy.values()):
            control.observe(lambda change: self.draw(), names="value")
        self.draw()

    def draw(self) -> None:
        try:
            setup = self._setup()
        except ValueError as error:
            self.say(f"{error}. The picture is still of the choices before.", problem=True)
            return
        self.plan = plan_of(setup)
        self.show(self._picture(), in_words(self.plan))

    def _setup(self, **changes) -> Setup:
        chosen = {name: control.value for name, control in self.strategy.items()}
        return setup_of(self.model.value, self.machine.value, self.gpus.value, **{**self._given, **chosen, **changes})

    def _picture(self) -> Figure:
        machine, memory = self.plan.setup.machine, self.plan.memory
        capacity = machine.gpu.name, machine.memory_bytes
        title = f"{self.model.value} on {self.gpus.value:,} GPUs"
        if self.view.value == OVER_A_STEP:
            return planned_memory(memory, capacity, title=f"{title}, {self.strategy['sharding'].value}")
        plans = self._with_each_sharding()
        if self.view.value == SHARDINGS:
            return planned_stacks({name: plan.memory for name, plan in plans.items()}, capacity, title=title)
        return step_parts({name: plan.speed.parts_s for name, plan in plans.items()}, title=title)

    def _with_each_sharding(self) -> dict[str, Plan]:
        """Return the plan of each sharding that is possible with the other choices."""
        found = {}
        for sharding in CHOICES["sharding"]:
            with suppress(ValueError):
                name = f"{sharding}, chosen" if sharding == self.strategy["sharding"].value else sharding
                found[name] = figures_of(self._setup(sharding=sharding))
        return found


def _control(name: str, value) -> ipywidgets.Dropdown:
    values = VALUES[name] if value in VALUES[name] else sorted({*VALUES[name], value})
    return choice(name.replace("_", " "), values, value)


def in_words(plan: Plan) -> str:
    """Return the plan in words, for readers who do not see the picture."""
    setup = plan.setup
    what = f"{setup.strategy.sharding}, {setup.shape.name} on {setup.world_size:,} GPUs: {verdict(plan).plain}."
    peak = f"Peak: {memory_in_words(plan)}."
    advice = f"\n{'Faster' if plan.fits == 'yes' else 'It would fit'} with {plan.advice[0]}." if plan.advice else ""
    return f"{what} {peak}\nA GPU: {speed_line(plan.speed)}\nBottleneck: {time_in_words(plan)}.{advice}"
