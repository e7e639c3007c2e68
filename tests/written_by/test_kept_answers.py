"""Answers of services of earlier releases, one of every kind and value: today's client reads them, and
today's service gives the same. `tests/kept_conversation.py` kept them.
"""

from __future__ import annotations

import pytest
from kept_conversation import answers
from kept_files import KEPT

from sortshuffle.errors import Place
from sortshuffle.service.wire.protocol import (
    HEADER_BYTES,
    ErrorResponse,
    Fault,
    FoundOutput,
    Header,
    Sender,
    Verdict,
    unpack_find_response,
)

RELEASES = sorted(path.parent.name for path in KEPT.glob("*/answers.txt"))
FILE_ID = bytes([2, 0, 0]).ljust(16, b"\xaa")


def answers_of(release: str) -> dict[str, bytes]:
    lines = [line.partition(" ") for line in (KEPT / release / "answers.txt").read_text().splitlines()]
    return {name: bytes.fromhex(digits) for digits, _, name in lines}


def read_by_todays_client(message: bytes) -> tuple[Header, bytes]:
    return Header.unpack(message[:HEADER_BYTES], Sender.SERVER), message[HEADER_BYTES:]


@pytest.mark.parametrize("release", RELEASES)
def test_todays_client_reads_every_answer(release: str) -> None:
    kept = answers_of(release)
    found = FoundOutput(FILE_ID, 204, "/disk/home/exchange-3-map-17-attempt-204", "host-a")
    assert unpack_find_response(*read_by_todays_client(kept["found"])) == found
    assert unpack_find_response(*read_by_todays_client(kept["not found"])) is None
    for name, number in {"SOUND": 0, "DAMAGED": 1, "MISSING": 2}.items():
        header, _ = read_by_todays_client(kept[f"verdict {name}"])
        assert (header.data_type, Verdict(header.data_type)) == (number, Verdict[name])
    for name, known in {"known": 1, "unknown": 0}.items():
        assert read_by_todays_client(kept[f"removal {name}"])[0].data_type == known
    faults = ("MISSING", "DAMAGED", "BAD_REQUEST", "TOO_MUCH", "TIMEOUT", "INTERNAL")
    for number, name in enumerate(faults, 1):
        assert Fault[name] == number
        error = ErrorResponse.unpack(*read_by_todays_client(kept[f"error {name}"]))
        place = Place("/disk/file.data", 1, 2, 3, "map 4")
        assert error == ErrorResponse(4, Fault[name], "what happened", place, "5", "6")
    error = ErrorResponse.unpack(*read_by_todays_client(kept["error without a place"]))
    assert error == ErrorResponse(4, Fault.INTERNAL, "what happened")


@pytest.mark.parametrize("release", RELEASES)
def test_todays_service_gives_the_same_answers(release: str) -> None:
    assert answers_of(release) == {name: answers()[name] for name in answers_of(release)}
