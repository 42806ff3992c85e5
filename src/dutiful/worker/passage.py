"""Once through one breaker, and what those inside it leave for it to say."""

from contextvars import ContextVar

from dutiful.core.breaker import Entry, Sign


class Passage:
    """`outer` is the one inside whose block it was asked for, of whatever breaker."""

    __slots__ = ("attempt", "entry", "holder", "inside", "name", "outer", "turn", "unwanted", "within", "word")

    def __init__(self, attempt: object, name: str, outer: "Passage | None") -> None:
        self.attempt = attempt
        self.name = name
        self.outer = outer
        self.entry: Entry | None = None
        self.inside = False
        self.unwanted = False
        self.turn = False  # the attempt's other calls wait until it has ended
        self.within: Passage | None = None  # the nearest around it of the same breaker
        self.holder: Passage | None = None  # the one around it whose place among the probes it shares
        self.word: Sign | None = None  # what is left for it to say, once one inside it has spoken

    def around(self) -> "Passage | None":
        """The nearest block around it that has the same breaker."""
        outer = self.outer
        while outer is not None:
            if outer.inside and outer.name == self.name and outer.attempt is self.attempt:
                return outer
            outer = outer.outer
        return None

    @property
    def place(self) -> "Passage | None":
        """The one that has the place among the probes in which calls inside it are made, too."""
        holder = self.holder or self
        return holder if holder.entry is not None and holder.entry.probe else None

    def let_in(self, entry: Entry, within: "Passage | None") -> None:
        holder = None if within is None else within.place
        self.entry, self.inside, self.within = entry, True, within
        if holder is not None and holder.entry == entry:
            self.holder = holder

    def speaks(self, sign: Sign) -> Sign:
        """What is to be told now of how it ended: each call is told of once, by the innermost block around it."""
        if self.word is not None:
            sign = self.word
        elif sign.clear:
            outer = self.within
            while outer is not None:
                outer.word = outer.word or Sign.UNCLEAR
                outer = outer.within
        if self.holder is None or sign is Sign.BAD:
            return sign
        # Whoever has the place keeps it to its end, so that nobody bars the rest of its calls.
        if sign is Sign.GOOD:
            self.holder.word = Sign.GOOD
        return Sign.UNCLEAR


INNERMOST: ContextVar[Passage | None] = ContextVar("dutiful_innermost_breaker", default=None)
"""Tasks that are started inside a breaker's block inherit it."""
