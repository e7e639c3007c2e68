"""`/status.json`: a `ServiceStatus` as JSON, and back.

A status from another process is checked like all data from the network: a document that is not exactly a
status is a `ProtocolError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from sortshuffle.errors import ProtocolError
from sortshuffle.service.pages.status import ApplicationStatus, ConnectionStatus, ServiceStatus

Record = TypeVar("Record", ConnectionStatus, ApplicationStatus, ServiceStatus)

_TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool}  # of annotations


def to_json(status: ServiceStatus) -> str:
    return json.dumps(asdict(status))


def from_json(text: str | bytes) -> ServiceStatus:
    """Parse a status. Raises `ProtocolError` if it is none, or is from another version of the package."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a status that is not JSON: {error}") from None
    return _record(
        ServiceStatus,
        found,
        {
            "roots": lambda value: tuple(_checked("roots", each, "str") for each in value),
            "connections": lambda value: tuple(_record(ConnectionStatus, each, {}) for each in value),
            "applications": lambda value: tuple(_record(ApplicationStatus, each, {}) for each in value),
        },
    )


def _record(kind: type[Record], found: Any, lists: Mapping[str, Any]) -> Record:
    wanted = {each.name: str(each.type) for each in fields(kind)}
    if not isinstance(found, dict) or set(found) != set(wanted):
        names = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise ProtocolError(f"a {kind.__name__} with other fields than this version's: {names}")
    values = {name: _value(name, found[name], kind_of, lists) for name, kind_of in wanted.items()}
    return kind(**values)


def _value(name: str, value: Any, wanted: str, lists: Mapping[str, Any]) -> Any:
    if name not in lists:
        return _checked(name, value, wanted)
    if not isinstance(value, list):
        raise ProtocolError(f"a status whose {name} is no list")
    return lists[name](value)


def _checked(name: str, value: Any, wanted: str) -> Any:
    kind = _TYPES[wanted]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:  # exactly: a bool is an int to isinstance
        raise ProtocolError(f"a status whose {name} is {value!r:.50}, not {wanted}")
    return value
