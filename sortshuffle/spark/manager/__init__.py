"""The driver's half of the shuffle manager, which turns the manager on or says why it cannot.

    jar           the path of the manager's Java classes
    settings      Spark's settings that turn the manager on
    launch        the settings that Spark's JVM starts with
    running_jvm   brings the manager's classes to a JVM that runs already
    jar_methods   methods of the jar that do in one call what Py4J takes many for
    activation    turns the manager on for a builder, or says what speaks against it

`docs/manager.md` describes the whole design. The Java half is in ``java/``.
"""
