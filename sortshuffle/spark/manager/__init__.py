"""The driver's half of the shuffle manager: it turns the manager on, or says why not.

    jar           the path of its Java classes
    settings      the settings of Spark that turn it on
    launch        the settings with which Spark's JVM starts
    running_jvm   its classes, for a JVM that runs already
    choice        turns it on for a builder, or says what speaks against it

`docs/manager.md` is the design of the whole. The Java half is in ``java/``.
"""
