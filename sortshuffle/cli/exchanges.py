"""A listing of the pairs below a directory, with the exchanges that the complete ones add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sortshuffle.cli.pair_report import PairReport, look, look_at_all, pairs_below
from sortshuffle.cli.unseen import PassedOver
from sortshuffle.format.encryption import EncryptionKey
from sortshuffle.report.exchanges import ExchangeFiles, ExchangeSums
from sortshuffle.storage.inspection.contents import PairState
from sortshuffle.storage.inspection.open_files import is_directory


@dataclass(frozen=True, slots=True)
class Listing:
    """The pairs of a directory, without their index entries, and the exchanges that they add up to, ordered
    by application and number."""

    looks: list[PairReport]
    exchanges: list[ExchangeFiles]

    @property
    def wrong(self) -> list[PairReport]:
        """The pairs that are not complete, and so not added up."""
        return [each for each in self.looks if each.state is not PairState.COMPLETE]

    @property
    def has_locked(self) -> bool:
        """Whether there is a pair that the given key does not decrypt."""
        return any(each.is_locked for each in self.looks)

    @property
    def is_well(self) -> bool:
        """Whether all pairs are complete, and the key, if one was given, decrypts them."""
        return not self.wrong and not self.has_locked


def add_up(looks: Iterable[PairReport]) -> Listing:
    """Add up the pairs into a `Listing`."""
    kept: list[PairReport] = []
    sums = ExchangeSums()
    for each in looks:
        if each.state is PairState.COMPLETE:
            sums.add(each.inspection)
        kept.append(each.without_table())
    return Listing(kept, sums.exchanges)


def listing_of(path: str, key: EncryptionKey | None, passed_over: PassedOver) -> Listing:
    """List a pair, or all pairs below a directory, of which only the indexes are read. ``key``: decrypts
    them. ``passed_over``: collects what cannot be looked at."""
    if not is_directory(path):
        return add_up([look(path, quick=True, key=key)])
    return add_up(look_at_all(pairs_below(path, passed_over.add), quick=True, key=key))
