"""Compare the predicted bytes of each setup with the bytes that ranks have just measured."""

import random
from dataclasses import dataclass

from grading.checks.errors_with_nan import size
from grading.checks.lab1_memory import draw
from grading.checks.lab1_memory.named_mistake import named
from grading.checks.lab1_memory.programs import Setup
from grading.judge.session import Session
from grading.judge.verdict import Verdict

TOLERANCES = {"resident": (0.01, 0.05), "peak": (0.01, 0.10)}  # relative error for full points, for half points
MIB = 2**20
UNITS = {
    4: "your numbers count elements: an element of fp32 has 4 bytes",
    1 / 8: "your numbers count bits",
    10**6: "your numbers are in MB: bytes are asked",
    2**20: "your numbers are in MiB: bytes are asked",
    10**9: "your numbers are in GB: bytes are asked",
    2**30: "your numbers are in GiB: bytes are asked",
    2**30 / 10**9: "a GB is taken for a GiB: bytes are asked, and no factor between the two",
    10**9 / 2**30: "a GiB is taken for a GB: bytes are asked, and no factor between the two",
    2**20 / 10**6: "a MB is taken for a MiB: bytes are asked, and no factor between the two",
    10**6 / 2**20: "a MiB is taken for a MB: bytes are asked, and no factor between the two",
}


@dataclass(frozen=True)
class Judge:
    """The judge of one program: `resident_points` for the resident bytes, the other points for the peak."""

    program: str
    resident_points: float

    def __call__(self, s: Session, check: str, points: float) -> Verdict:
        setups = drawn(self.program, s.seed)
        replies = s.order(check, "predict", world_size=1, device="cpu", setups=setups)[0]
        if problem := unreadable(replies, 1, 2, "(resident_bytes, peak_bytes)"):
            return Verdict(check, 0, points, problem)
        truth, explained = measured(s, self.program, setups), s.solve("explained", self.program, setups)
        due = {"resident": self.resident_points, "peak": points - self.resident_points}
        outcomes = [
            _Outcome(self.program, of, setups, [r[0][i] for r in replies], truth, explained)
            for i, of in enumerate(TOLERANCES)
        ]
        total = sum(o.share * due[o.of] for o in outcomes)
        figures = dict(o.figure() for o in outcomes)
        states_are_right = outcomes[0].share == 1
        causes = {o.when: o.cause(states_are_right) for o in outcomes if o.share < 1}
        right = f"what is resident and needed at the peak is as predicted, on {len(setups)} setups that were drawn."
        return Verdict(check, total, points, _joined(causes) or right, "", figures)


def drawn(program: str, seed: int) -> list[dict]:
    return draw.setups(program, random.Random(f"{program} {seed}"))


def _joined(causes: dict[str, str]) -> str:
    """Return one sentence for each moment, or a single one if the causes are the same."""
    if len(causes) == 2 and len(set(causes.values())) == 1:
        causes = {" and ".join(causes): next(iter(causes.values()))}
    sentences = (f"{when}: {words}." for when, words in causes.items())
    return " ".join(s[0].upper() + s[1:] for s in sentences)


def unreadable(replies, n_functions: int, n_numbers: int, what: str) -> str | None:
    """Return why a reply to the drill `predict` can't be judged; None if it can."""
    if isinstance(replies, dict):
        why = replies.get("refused")
        return f"a prediction is arithmetic on plain numbers, without torch, shardlab or grading: {why}."
    for reply in replies:
        for numbers in reply:
            if not isinstance(numbers, list) or len(numbers) != n_numbers:
                shown = numbers if isinstance(numbers, str) else ", ".join(f"{n:g}" for n in numbers)
                return f"a prediction must be {what}, finite numbers; one of yours is {shown}."
        assert len(reply) == n_functions
    return None


def measured(s: Session, program: str, setups: list[dict]) -> list[dict]:
    """Return, for each setup, the bytes that the reference measured on the rank with the largest peak."""
    truth: dict[int, dict] = {}
    for n in sorted({setup["N"] for setup in setups}):
        chosen = [i for i, setup in enumerate(setups) if setup["N"] == n]
        of_ranks = s.order_reference(
            "measure", world_size=n, device="cpu", program=program, setups=[setups[i] for i in chosen]
        )
        for place, i in enumerate(chosen):
            truth[i] = max((rank[place] for rank in of_ranks), key=lambda held: sum(held["peak"].values()))
    return [truth[i] for i in range(len(setups))]


class _Outcome:
    """One quantity (resident or peak) on all setups: predicted, measured, and the errors."""

    def __init__(
        self, program: str, of: str, setups: list[dict], mine: list[float], truth: list[dict], explained: dict
    ) -> None:
        self.program, self.of, self.mine, self.held = program, of, mine, [t[of] for t in truth]
        self.explained = explained
        self.when = "at the peak" if of == "peak" else "between steps"
        self.setups = [Setup(**s) for s in setups]
        self.due = [sum(held.values()) for held in self.held]
        self.errors = [m / d - 1 for m, d in zip(mine, self.due, strict=True)]
        self.worst = max(range(len(setups)), key=lambda i: size(self.errors[i]))

    @property
    def share(self) -> float:
        full, half = TOLERANCES[self.of]
        error = abs(self.errors[self.worst])
        return 1.0 if error <= full else 0.5 if error <= half else 0.0

    def figure(self) -> tuple[str, tuple[str, str]]:
        full, half = TOLERANCES[self.of]
        allowed = f"{full:.0%}, for half the points {half:.0%}"
        return f"largest error, {self.of}", (f"{self.errors[self.worst]:+.1%}", allowed)

    def cause(self, states_are_right: bool = True) -> str:
        if len(set(self.mine)) == 1 and len(self.mine) > 1:
            return "your number is the same for all setups, and they differ"
        mistake = named(self.explained, self.of, self.mine, states_are_right)
        return self._unit(states_are_right) or mistake or self._where_bytes_are()

    def _unit(self, states_are_right: bool) -> str | None:
        """Return the unit that explains all numbers. Factors near 1 count only if the states are off, too."""
        for factor, words in UNITS.items():
            if states_are_right and 0.9 < factor < 1.1:  # then the peak is merely a few percent off
                continue
            if all(abs(m * factor / d - 1) < 0.01 for m, d in zip(self.mine, self.due, strict=True)):
                return words
        return None

    def _where_bytes_are(self) -> str:
        s, held, error = self.setups[self.worst], self.held[self.worst], self.errors[self.worst]
        parts = ", ".join(f"{name} {n / MIB:.2f}" for name, n in held.items() if n > 0.005 * sum(held.values()))
        moment = f", {self.explained['moments'][self.worst]}" if self.of == "peak" else ""
        side = "too little" if error < 0 else "too much"
        mine, due = self.mine[self.worst] / MIB, self.due[self.worst] / MIB
        return (
            f"{abs(error):.1%} {side} for {_shown(s, self.program)}; you say {mine:.2f} MiB, and measured were "
            f"{due:.2f}{moment}: {parts}"
        )


def _shown(s: Setup, program: str) -> str:
    switches = {"views": "ddp", "reshard": "fsdp"}
    return ", ".join(f"{k}={v}" for k, v in vars(s).items() if switches.get(k, program) == program)
