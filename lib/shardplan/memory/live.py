"""Live terms during a step: groups of terms that are held and dropped by name, and the moments that record them.

Equal blocks hold the same groups, so that a moment has one term for all of them: "12 x gate, B T F in 16 bits".
"""

from collections.abc import Iterable

from shardplan.records import Moment, Term

Terms = tuple[Term, ...]


class Live:
    """The live groups. A group is recognized by its identity: pass the same tuple for the same thing."""

    def __init__(self) -> None:
        self.n_bytes = 0.0
        self.part = ""  # of the step
        self.quiet = False  # moments are not recorded
        self.moments: list[Moment] = []
        self._groups: dict[str, Terms] = {}
        self._counts: dict[int, int] = {}
        self._known: dict[int, tuple[Terms, float]] = {}  # keeps the tuples alive, so that an id belongs to one group
        self._times: dict[tuple[int, int], Terms] = {}

    def hold(self, name: str, terms: Terms) -> None:
        """Hold these terms from now on. They replace the terms of the same name."""
        self.drop(name)
        if not self.total(terms):
            return
        self._groups[name] = terms
        self._counts[id(terms)] = self._counts.get(id(terms), 0) + 1
        self.n_bytes += self.total(terms)

    def drop(self, name: str) -> None:
        terms = self._groups.pop(name, None)
        if terms is not None:
            self._counts[id(terms)] -= 1
            if not self._counts[id(terms)]:
                del self._counts[id(terms)]
            self.n_bytes -= self.total(terms)

    def holds(self, name: str) -> bool:
        return name in self._groups

    def look(self, name: str, phase: str, more: Terms = ()) -> None:
        if not self.quiet:
            self.moments.append(self.moment(name, phase, more))

    def moment(self, name: str, phase: str, more: Terms = ()) -> Moment:
        """Return a moment of all live terms, and of `more`, which are live only now."""
        terms: list[Term] = []
        for key, count in self._counts.items():
            terms += self._known[key][0] if count == 1 else self._multiple(key, count)
        return Moment(name, phase, (*terms, *more), self.part)

    def total(self, terms: Terms) -> float:
        """Return a group's bytes, added up once for each group."""
        if id(terms) not in self._known:
            self._known[id(terms)] = terms, total(terms)
        return self._known[id(terms)][1]

    def _multiple(self, key: int, count: int) -> Terms:
        if (key, count) not in self._times:
            self._times[key, count] = tuple(times(count, term) for term in self._known[key][0])
        return self._times[key, count]


def times(count: int, term: Term) -> Term:
    return Term(term.category, f"{count} x {term.words}", count * term.n_bytes, term.pool)


def total(terms: Iterable[Term]) -> float:
    return sum(term.n_bytes for term in terms)
