"""The same run in one process, in float64, with a copy of the model for each site; and the same with a mistake."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from grading.checks.lab11_slow_link.model_samples_schedule import OPTIMIZERS, Setting, build, samples

# A mistake's name, and what it does to the weights, in words. The first that fits is the one that is named.
SLIPS = {
    "samples of ranks": "as if a site's gradient were the mean over its ranks: weight each rank by its samples.",
    "mean of sites": "as if every site counted alike in the mean drift: weight each site by its samples.",
    "samples of one rank": "as if a site's weight were the samples of one of its ranks, not of all of them.",
    "samples of the last step": "as if a site's weight were its samples of the last step, not of all steps it sends.",
    "sum": "as if the drifts were summed over sites, and not divided by all samples.",
    "no momentum": "as if the outer step had no momentum.",
    "plain momentum": "as if the outer momentum were not Nesterov's: the anchor moves by lr (d + momentum v).",
    "velocity first": "as if the outer step used the velocity from before this round's drift.",
    "average": "as if a round ended with the mean of the weights, without an outer optimizer.",
    "states reset": "as if the inner optimizer's states were reset in every round.",
    "states averaged": "as if the inner optimizer's states were averaged over sites: each site keeps its own.",
    "gradients too": "as if the gradients were averaged over all sites in every step.",
    "weights stay": "as if the sites did not continue from the anchor.",
    "no last mean": "as if `finish` had not applied the mean that was on its way.",
    "empty round": "as if `finish` had ended one more round, though every step was in a message already.",
    "no last round": "as if `finish` sent nothing: a site's steps since it last took part are in no message.",
    "overwritten": "as if the steps that a site took while its message was on the way were thrown away.",
    "mixed": "as if a late anchor were mixed with the site's own weights, half and half, as in lesson 22.",
    "at once": "as if the mean drift were applied in the step that sends it, not `late` steps later.",
    "before the step": "as if a late mean were applied before the optimizer's step: that step belongs before it.",
    "counted twice": "as if the steps taken while a message was on the way were applied, and sent in no message.",
    "work dropped": "as if the steps of a site that was down were thrown away when it came back.",
    "new anchor": "as if a site that came back had measured its drift from the others' anchor, not from its own.",
    "one round's samples": "as if a site that came back were weighted by the samples of its last round alone.",
    "own velocity": "as if a site that came back had kept its old velocity.",
    "own anchor": "as if a site that came back had kept its old anchor.",
    "own anchor and velocity": "as if a site that came back had got neither the others' anchor nor their velocity.",
    "everybody": "as if every site took part in every round: `up(k)` has the sites whose link works.",
    "sites of the next round": "as if round k had the sites of `up(k + 1)`: the first round is 0.",
    "outer step alone": "as if a site that is down did outer steps by itself.",
}


@dataclass
class Site:
    """One site's copy: its model and inner optimizer, and its outer state."""

    number: int
    model: nn.Module
    inner: Optimizer
    anchor: Tensor
    velocity: Tensor
    samples: float = 0.0  # since the last round in which it took part
    newest: float = 0.0  # samples of the last step
    of_round: float = 0.0
    fresh: bool = True  # it took part in the last round
    sent: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def weights(self) -> Tensor:
        return parameters_to_vector(self.model.parameters()).detach().clone()

    def set_weights(self, flat: Tensor) -> None:
        vector_to_parameters(flat.clone(), self.model.parameters())


class Alone:
    """The run with one slip, or none. `steps()` returns each site's weights after each step, and after `finish`."""

    def __init__(self, run: Setting, slip: str = "") -> None:
        self.run, self.slip = run, slip
        self.sites = []
        for i in range(run.nodes):
            model = build(run.seed)
            flat = parameters_to_vector(model.parameters()).detach().clone()
            inner = OPTIMIZERS[run.optimizer](model.parameters())
            self.sites.append(Site(i, model, inner, flat, torch.zeros_like(flat)))
        self.rounds, self.due, self.mean = 0, 0, None

    def steps(self) -> list[list[Tensor]]:
        found = []
        for step in range(1, self.run.steps + 1):
            self._local(step)
            if step % self.run.H == 0:
                self._send(self._up(), step)
            if self.mean is not None and step == self.due:
                self._receive()
            found.append([site.weights for site in self.sites])
        self._finish()
        return [*found, [site.weights for site in self.sites]]

    def _up(self) -> list[int]:
        """Return the sites that take part in the round that ends."""
        if self.slip == "everybody":
            return list(range(self.run.nodes))
        return self.run.up_at(self.rounds + (self.slip == "sites of the next round"))

    def _local(self, step: int) -> None:
        run, per_site = self.run, []
        for site in self.sites:
            parts = [samples(run, step - 1, site.number * run.ranks_per_node + j) for j in range(run.ranks_per_node)]
            counts = [len(x) for x, _ in parts]
            shares = [1 / len(counts)] * len(counts) if self.slip == "samples of ranks" else counts
            site.model.zero_grad()
            loss = sum(n * site.model(*part) for n, part in zip(shares, parts, strict=True)) / sum(shares)
            loss.backward()
            site.newest = counts[0] if self.slip == "samples of one rank" else sum(counts)
            site.samples, site.of_round = site.samples + site.newest, site.of_round + site.newest
            per_site.append(parameters_to_vector([p.grad for p in site.model.parameters()]))
        if self.slip == "gradients too":
            total = sum(site.newest for site in self.sites)
            mean = sum(site.newest * g for site, g in zip(self.sites, per_site, strict=True)) / total
            for site in self.sites:
                vector_to_parameters(mean.clone(), [p.grad for p in site.model.parameters()])
        if self.slip == "before the step" and self.mean is not None and step == self.due:
            self._receive()
        for site in self.sites:
            site.inner.step()

    def _send(self, up: list[int], step: int) -> None:
        self.rounds += 1
        present = [site for site in self.sites if site.number in up]
        newest = next((site for site in present if site.fresh), present[0])
        weights, drifts = [], []
        for site in present:
            start = newest.anchor if self.slip == "new anchor" else site.anchor
            drifts.append(start - site.weights)
            weights.append(self._weight(site))
            if not site.fresh:
                if self.slip not in ("own anchor", "own anchor and velocity"):
                    site.anchor = newest.anchor.clone()
                if self.slip not in ("own velocity", "own anchor and velocity"):
                    site.velocity = newest.velocity.clone()
        self.mean = sum(n * d for n, d in zip(weights, drifts, strict=True))
        self.mean = self.mean if self.slip == "sum" else self.mean / (sum(weights) or 1)
        self.present, self.due = present, step if self.slip == "at once" else step + self.run.late
        for site in self.sites:
            site.fresh = site in present
            site.of_round = 0.0
            if site.fresh:
                site.samples, site.sent = 0.0, site.weights
            elif self.slip == "outer step alone":
                self._outer(site, site.anchor - site.weights)
                site.set_weights(site.anchor)

    def _weight(self, site: Site) -> float:
        if self.slip == "work dropped" and not site.fresh:
            return 0.0
        if self.slip == "one round's samples":
            return site.of_round or site.samples
        return {"mean of sites": 1.0, "samples of the last step": site.newest}.get(self.slip, site.samples)

    def _receive(self) -> None:
        for site in self.present:
            now = site.weights
            self._outer(site, self.mean)
            if self.slip == "counted twice":
                site.anchor = site.anchor + (now - site.sent)
                site.set_weights(site.anchor)
            elif self.slip == "mixed" and self.run.late:
                site.set_weights((now + site.anchor) / 2)
            elif self.slip == "overwritten":
                site.set_weights(site.anchor)
            elif self.slip != "weights stay":
                site.set_weights(site.anchor + (now - site.sent))
        self._spoil_states()
        self.mean = None

    def _outer(self, site: Site, d: Tensor) -> None:
        momentum = {"no momentum": 0.0, "average": 0.0}.get(self.slip, self.run.momentum)
        lr = 1.0 if self.slip == "average" else self.run.lr
        before, site.velocity = site.velocity, momentum * site.velocity + d
        move = {"plain momentum": site.velocity, "velocity first": d + momentum * before}
        site.anchor = site.anchor - lr * move.get(self.slip, d + momentum * site.velocity)

    def _spoil_states(self) -> None:
        states = [[s for p in site.model.parameters() for s in self._states(site, p)] for site in self.sites]
        for same in zip(*states, strict=True):
            mean = torch.stack(same).mean(0)
            for state in same:
                if self.slip == "states averaged":
                    state.copy_(mean)
                elif self.slip == "states reset":
                    state.zero_()

    def _states(self, site: Site, p: nn.Parameter) -> list[Tensor]:
        return [s for s in site.inner.state[p].values() if isinstance(s, Tensor)]

    def _finish(self) -> None:
        if self.mean is not None and self.slip != "no last mean":
            self._receive()
        has_steps = any(site.samples for site in self.sites) or self.slip == "empty round"
        if has_steps and self.slip != "no last round":
            self._send(list(range(self.run.nodes)), self.run.steps)
            self._receive()
