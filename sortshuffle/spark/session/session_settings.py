"""`SessionSettings`: what frames take from the settings of a session, kept until a setting changes.

A frame is made of almost every DataFrame of a session, and the settings of a classic session are in its JVM:
reading them takes dozens of calls through Py4J. So what was read is kept for each session, with the copy of
all settings that it was read from. The copy stays in the JVM, which compares it with the settings in one call
for each frame. However a setting was changed, by ``spark.conf``, SQL or another session object, the next
frame sees the change. Settings that were refused are not kept: they are read and refused again.

Over Spark Connect nothing is kept, because comparing would take as many calls as reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from sortshuffle.options import Options
from sortshuffle.spark.functions.conf import TIME_ZONE, FunctionConf
from sortshuffle.spark.session.java import dict_of, java_class
from sortshuffle.spark.session.requirements import (
    application_of,
    context_settings,
    is_classic,
    settings_of,
)
from sortshuffle.spark.session.service import ServiceSettings
from sortshuffle.spark.session.sparks_shuffle import check_sparks_shuffle


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session that frames use. ``coalesces``: whether Spark joins small partitions after a
    shuffle. ``application``: the id of the session's application."""

    options: Options
    conf: FunctionConf
    case_sensitive: bool
    coalesces: bool
    application: str
    services: ServiceSettings

    @staticmethod
    def of(session: SparkSession) -> SessionSettings:
        """Return the current settings of a session, whose SparkContext runs. Raises `OptionError` for a wrong
        setting of this package, `UnsupportedError` for a setting of Spark's that rules frames out."""
        if not is_classic(session):
            return _read(session, settings_of(session), session.conf.get)
        kept = _kept.get(session)
        if kept is None or not kept.is_current(session):
            # threads that read at the same time keep either's copy, which the next frame compares again
            kept = _kept[session] = _KeptSettings.of(session)
        return kept.settings


@dataclass(frozen=True, slots=True)
class _KeptSettings:
    """``settings``: read from ``copy``, an unchanging copy of the JVM's map ``live`` of all settings of a
    session. ``default_zone``: whether the time zone is the JVM's, which changes without a setting.

    Nothing here may refer to the session, which is the weak key of this value."""

    settings: SessionSettings
    live: Any
    copy: Any
    default_zone: bool

    @staticmethod
    def of(session: Any) -> _KeptSettings:
        jvm, java = session.sparkContext._jvm, session._jsparkSession
        # a private SQLConf, so that defaults belong to the copy, too, whatever other threads set meanwhile
        copy_conf = java_class(jvm, "org.apache.spark.sql.internal.SQLConf")()
        copy = copy_conf.settings()
        copy.putAll(java.conf().getAllAsJava())
        texts = dict_of(jvm, copy)
        settings = _read(session, texts, copy_conf.getConfString)
        return _KeptSettings(settings, java.sessionState().conf().settings(), copy, TIME_ZONE not in texts)

    def is_current(self, session: SparkSession) -> bool:
        """Return whether the settings of the session are still those that were read."""
        if not self.live.equals(self.copy):
            return False
        return not self.default_zone or session.conf.get(TIME_ZONE) == self.settings.conf.timezone


_kept: WeakKeyDictionary[SparkSession, _KeptSettings] = WeakKeyDictionary()


def _read(session: SparkSession, texts: Mapping[str, str], get: Callable[[str], Any]) -> SessionSettings:
    """Read settings from ``texts``, and those that are not set by ``get``, which returns their defaults."""

    def text(name: str) -> Any:
        return texts[name] if name in texts else get(name)

    def is_true(name: str) -> bool:
        return str(text(name)).lower() == "true"

    options = Options.of(texts)
    of_context = context_settings(session) if is_classic(session) else texts
    check_sparks_shuffle(of_context, options)
    application = application_of(session)
    return SessionSettings(
        options,
        FunctionConf.read(text),
        is_true("spark.sql.caseSensitive"),
        is_true("spark.sql.adaptive.enabled") and is_true("spark.sql.adaptive.coalescePartitions.enabled"),
        application,
        ServiceSettings.of(options, application, of_context),
    )
