"""`/status.json` is a status and back, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_figures import IDLE, STATUS

from sortshuffle.errors import ProtocolError
from sortshuffle.service.pages.status import ApplicationStatus, ConnectionStatus, ServiceStatus
from sortshuffle.service.pages.status_json import from_json, to_json

finite = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, finite)


@given(
    st.builds(
        ServiceStatus,
        connections=st.lists(st.builds(ConnectionStatus), max_size=3).map(tuple),
        applications=st.lists(st.builds(ApplicationStatus), max_size=3).map(tuple),
    )
)
def test_there_and_back(status: ServiceStatus) -> None:
    assert from_json(to_json(status)) == status
    assert from_json(to_json(status).encode()) == status


def test_whole_seconds_are_seconds() -> None:
    found = from_json(to_json(IDLE).replace('"uptime": 0.0', '"uptime": 7'))
    assert found.uptime == 7.0
    assert isinstance(found.uptime, float)


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(STATUS)), **changes})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{" * 10, "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        ("[]", "other fields"),
        ("null", "other fields"),
        ("{}", "other fields"),
        (changed(more=1), "other fields"),
        (changed(pid="1"), "pid is '1', not int"),
        (changed(pid=True), "pid is True, not int"),
        (changed(pid=1.5), "pid is 1.5, not int"),
        (changed(uptime=None), "uptime is None, not float"),
        (changed(authenticated=1), "authenticated is 1, not bool"),
        (changed(roots="/"), "roots is no list"),
        (changed(roots=[1]), "roots is 1, not str"),
        (changed(connections=[{}]), "ConnectionStatus with other fields"),
        (changed(applications=[[1]]), "ApplicationStatus with other fields"),
    ],
    ids=range(17),
)
def test_what_is_no_status_is_refused(text: str | bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        from_json(text)
