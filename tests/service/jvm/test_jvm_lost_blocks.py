"""The error that names lost blocks: what several looks have found becomes one error."""

from __future__ import annotations

import errno
import logging

import pytest
from jvm_client import frames

from sortshuffle.errors import MissingDataError, Place, ProtocolError, ServiceUnavailableError
from sortshuffle.service.jvm.lost_blocks import (
    MOST_REASONS,
    LostBlocksError,
    is_no_loss,
    joined,
    raise_for,
    with_all_lost,
    without_frames,
)

LOCAL = LostBlocksError([4, 2], ["a file is gone"])
SILENT = LostBlocksError([1, 2], ["a service does not answer"], silent=[5])


def test_one_error_has_the_blocks_and_the_reasons_of_all_and_silent_services_come_first() -> None:
    error = joined(LOCAL, SILENT, LOCAL)
    assert error.blocks == (1, 2, 4)
    assert error.reasons == ("a service does not answer", "a file is gone")
    assert str(error) == "a service does not answer; a file is gone"
    assert error.silent == (5,)
    assert joined(SILENT, LostBlocksError([7], ["another"], silent=[3, 5])).silent == (3, 5)
    assert joined(LOCAL, LostBlocksError([7], ["another"])).silent == ()


def test_of_many_reasons_the_text_has_the_first_ones_and_the_number_of_the_others() -> None:
    reasons = [f"reason {number}" for number in range(MOST_REASONS)]
    assert str(LostBlocksError([1], reasons)) == "; ".join(reasons)
    assert str(LostBlocksError([1], [*reasons, "x", "y"])) == "; ".join(reasons) + "; and 2 more"


def test_another_look_adds_its_losses_and_their_reasons() -> None:
    def locate() -> None:
        raise SILENT

    error = with_all_lost(LOCAL, locate, shuffle=3)
    assert (error.blocks, error.silent) == ((1, 2, 4), (5,))
    assert error.reasons == ("a service does not answer", "a file is gone")


def test_another_look_that_finds_nothing_or_fails_leaves_what_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError("the disk is away")

    assert with_all_lost(LOCAL, lambda: None, shuffle=3).blocks == (2, 4)
    with caplog.at_level(logging.WARNING):
        error = with_all_lost(LOCAL, fail, shuffle=3)
    assert (error.blocks, error.reasons, error.silent) == ((2, 4), ("a file is gone",), ())
    assert "what else is lost of shuffle 3 cannot be told: the disk is away" in caplog.text


@pytest.mark.parametrize(
    ("answer", "says_nothing"),
    [
        (OSError(errno.EMFILE, "too many"), True),
        (MemoryError(), True),
        (ProtocolError("odd"), True),
        (MissingDataError(Place("file"), "gone"), False),
        (ServiceUnavailableError("no answer"), False),
        (b"records", False),
        (None, False),
    ],
    ids=repr,
)
def test_an_error_that_says_nothing_of_a_map_output_is_no_loss(answer: object, says_nothing: bool) -> None:
    assert is_no_loss(answer) is says_nothing


def test_losses_are_raised_and_other_errors_logged(caplog: pytest.LogCaptureFixture) -> None:
    answers = [b"records", MissingDataError(Place("file"), "gone"), OSError("no room"), MemoryError()]
    with caplog.at_level(logging.WARNING), pytest.raises(LostBlocksError) as caught:
        raise_for([LOCAL, SILENT], answers, shuffle=3)
    assert caught.value.blocks == (1, 2, 4)
    assert "what else is lost of shuffle 3 cannot be told: no room" in caplog.text


@pytest.mark.parametrize("error", [OSError("no room"), ServiceUnavailableError("odd")])
def test_where_nothing_is_lost_whatever_error_there_is_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        raise_for([], [b"records", error, MemoryError()], shuffle=3)
    assert caught.value is error
    raise_for([], [b"records"], shuffle=3)


def test_an_error_that_is_kept_holds_no_frames_nor_do_those_that_it_came_from() -> None:
    def fail() -> None:
        try:
            raise ValueError("the bytes differ")
        except ValueError:
            raise MissingDataError(Place("file"), "gone") from None

    with pytest.raises(MissingDataError) as caught:
        fail()
    assert frames(caught.value)[-2:] == ["fail", "fail"]
    assert without_frames(caught.value) is caught.value
    assert frames(caught.value) == []
    assert str(caught.value.__context__) == "the bytes differ"
