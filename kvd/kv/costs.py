"""Is loading a body from disk faster than computing it again? Learned from what both took before."""

from __future__ import annotations

_FORGET = 0.95
"""What an earlier observation weighs when another is made: some twenty of the last ones count."""
_EXPLORE = 16
"""After so many bodies computed instead of loaded one is loaded again, to see if that is still so."""


class LinearCost:
    """Seconds as overhead + tokens x rate, by least squares over recent observations."""

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0

    @property
    def known(self) -> bool:
        return self._weight > 0

    def observe(self, tokens: int, seconds: float) -> None:
        one = {"_weight": 1.0, "_n": tokens, "_nn": tokens**2, "_t": seconds, "_nt": tokens * seconds}
        for name, value in one.items():
            setattr(self, name, getattr(self, name) * _FORGET + value)

    def predict(self, tokens: int) -> float:
        """0.0 while nothing was observed. Proportional where the observations show no other line that rises."""
        if not self.known:
            return 0.0
        spread = self._weight * self._nn - self._n**2
        rate = (self._weight * self._nt - self._n * self._t) / spread if spread > 1e-9 * self._nn else 0.0
        overhead = (self._t - rate * self._n) / self._weight
        if rate <= 0 or overhead < 0:
            return tokens * self._t / self._n
        return overhead + rate * tokens


class Costs:
    """Loading and prefill of one model on this machine."""

    def __init__(self) -> None:
        self.load, self.prefill = LinearCost(), LinearCost()
        self._refused = 0

    def loading_wins(self, tokens: int) -> bool:
        """What to do with a body of so many tokens that is on disk; loads until both costs are known."""
        if not (self.load.known and self.prefill.known) or self.load.predict(tokens) <= self.prefill.predict(tokens):
            return True
        self._refused += 1
        return self._refused % _EXPLORE == 0
