"""Events: each has its bytes, the same every time, and only those; any other bytes are an error."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from engine import untouched
from hypothesis import given
from hypothesis import strategies as st

from sortshuffle.errors import UsageError
from sortshuffle.format.buffer import MAX_PAYLOAD_BYTES, DataType, scan_buffer
from sortshuffle.format.malformed import Malformed
from sortshuffle.payload.events import (
    END_OF_DATA,
    END_OF_PARTITION,
    MAX_DATA_BYTES,
    MAX_NAME_BYTES,
    SUPERSTEP,
    Barrier,
    Event,
    UserEvent,
    pack_event,
    seal_event,
    unpack_event,
)

EVENTS = [
    END_OF_DATA,
    END_OF_PARTITION,
    SUPERSTEP,
    Barrier(7, 1_700_000_000_000_000),
    Barrier(0, 0),
    Barrier(2**64 - 1, 2**64 - 1, b"any \x00 options"),
    UserEvent("a name", b"and data"),
    UserEvent("größe"),
    UserEvent("", b""),
]
BY_NAME = pytest.mark.parametrize("event", EVENTS, ids=repr)
numbers = st.integers(0, 2**64 - 1)
events = (
    st.sampled_from([END_OF_DATA, END_OF_PARTITION, SUPERSTEP])
    | st.builds(Barrier, numbers, numbers, st.binary(max_size=300))
    | st.builds(UserEvent, st.text(max_size=300), st.binary(max_size=300))
)


@given(events)
def test_any_event_comes_back(event: Event) -> None:
    assert unpack_event(event.data_type, memoryview(pack_event(event))) == event


def test_the_bytes_are_those_of_the_description() -> None:
    assert [pack_event(event) for event in (END_OF_DATA, END_OF_PARTITION, SUPERSTEP)] == [b"", b"", b""]
    assert pack_event(Barrier(3, 4, b"opt")) == struct.pack("<QQI", 3, 4, 3) + b"opt"
    assert pack_event(UserEvent("ab", b"xyz")) == struct.pack("<HI", 2, 3) + b"ab" + b"xyz"


@BY_NAME
def test_a_buffer_of_an_event_says_so_and_is_neither_compressed_nor_a_record(event: Event) -> None:
    sealed = seal_event(event)
    stored = sealed.header + bytes(sealed.payload) + sealed.tail
    scan = scan_buffer(memoryview(stored), 0)
    assert scan.end == len(stored) == sealed.bytes
    assert (scan.buffer.data_type, scan.buffer.compressed, sealed.records) == (event.data_type, False, 0)
    payload = stored[scan.buffer.start : scan.buffer.start + scan.buffer.size]
    assert unpack_event(scan.buffer.data_type, payload) == event


@BY_NAME
def test_an_event_that_is_cut_or_goes_on_is_an_error(event: Event) -> None:
    payload = pack_event(event)
    for size in range(len(payload)):
        with pytest.raises(Malformed, match="is cut short"):
            unpack_event(event.data_type, payload[:size])
    with pytest.raises(Malformed, match="bytes too many"):
        unpack_event(event.data_type, payload + b"x")


@pytest.mark.parametrize("data_type", [DataType.DATA, 6, 255])
def test_another_kind_is_an_error(data_type: int) -> None:
    with pytest.raises(Malformed, match="not known"):
        unpack_event(data_type, b"")


def test_a_name_that_is_no_text_is_an_error() -> None:
    with pytest.raises(Malformed, match="not UTF-8"):
        unpack_event(DataType.USER_EVENT, struct.pack("<HI", 1, 0) + b"\xff")


def test_what_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(UsageError, match="time must be from 0"):
        Barrier(0, -1)
    with pytest.raises(UsageError, match="id must be from 0"):
        Barrier(2**64, 0)
    with pytest.raises(UsageError, match="at most 65535 bytes of UTF-8, not 65536"):
        UserEvent("ü" * 32_768)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Barrier("7", 0), "id must be an int, not '7'"),  # type: ignore[arg-type]
        (lambda: Barrier(0, 1.5), "time must be an int, not 1.5"),  # type: ignore[arg-type]
        (lambda: Barrier(0, 0, "x"), "options of a barrier must be bytes, not a str"),  # type: ignore[arg-type]
        (lambda: UserEvent(b"unit"), "name of an event is a str, not b'unit'"),  # type: ignore[arg-type]
        (lambda: UserEvent("unit", "cent"), "data of a user event must be bytes, not a str"),  # type: ignore[arg-type]
        (lambda: UserEvent("unit", 7), "data of a user event must be bytes, not a int"),  # type: ignore[arg-type]
        (lambda: UserEvent("\ud800"), "has no UTF-8"),
    ],
)
def test_fields_of_other_types_are_refused_when_an_event_is_made(
    make: Callable[[], Event], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_an_event_does_not_change() -> None:
    data = bytearray(b"cent")
    event = UserEvent("unit", data)  # type: ignore[arg-type]
    data[:] = b"euro"
    assert event == UserEvent("unit", b"cent")
    barrier = Barrier(np.int64(7), np.uint8(1), memoryview(b"x"))  # type: ignore[arg-type]
    assert barrier == Barrier(7, 1, b"x")
    assert type(barrier.id) is int
    assert unpack_event(DataType.BARRIER, pack_event(barrier)) == barrier


def test_what_no_buffer_can_hold_is_refused_before_it_is_packed() -> None:
    assert MAX_DATA_BYTES + MAX_NAME_BYTES + 20 <= MAX_PAYLOAD_BYTES
    with pytest.raises(UsageError, match=f"options of a barrier have at most {MAX_DATA_BYTES} bytes, not"):
        Barrier(0, 0, cast(bytes, untouched(MAX_DATA_BYTES + 1)))
    with pytest.raises(UsageError, match=f"data of a user event have at most {MAX_DATA_BYTES} bytes, not"):
        UserEvent("", cast(bytes, untouched(MAX_DATA_BYTES + 1)))


@given(st.sampled_from(EVENTS), st.data())
def test_any_damage_to_an_event_is_malformed_or_another_event(event: Event, data: st.DataObject) -> None:
    payload = bytearray(pack_event(event))
    for position in data.draw(st.lists(st.integers(0, max(0, len(payload) - 1)), max_size=3)):
        if payload:
            payload[position] ^= data.draw(st.integers(1, 255))
    kind = data.draw(st.integers(0, 7))
    try:
        found = unpack_event(kind, bytes(payload))
    except Malformed:
        return
    assert pack_event(found) == payload
    assert found.data_type == kind
