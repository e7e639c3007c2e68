"""The driver's half of the shuffle manager: whether it is on, and what turns it on.

    jar           where its Java classes are
    settings      which of Spark's settings turn it on, and whether a SparkContext has them
    launch        what the settings of Spark's JVM are, before there is one
    choice        turns it on for a builder, or says what speaks against it

`docs/manager.md` is the design of the whole. The Java half is in ``java/``.
"""
