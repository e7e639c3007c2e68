"""Makes each executor of a `local-cluster` a host of its own, and tells which map outputs its workers open.

Put on the path of the executors' Python (spark.executorEnv.PYTHONPATH). An executor's host is a loopback
address made of the pid of its JVM, which is the parent of the first Python process; those that this one
starts inherit it. With SORTSHUFFLE_TEST_OPENED in the environment, every map output that is opened becomes a
line "host path" in that file.
"""

import os
import sys

ADDRESS = "SPARK_LOCAL_IP"


def address_of(pid):
    return f"127.{1 + (pid >> 16) % 250}.{(pid >> 8) % 256}.{pid % 256}"


def tell(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "/exchange-" in arguments[0]:
        with open(os.environ["SORTSHUFFLE_TEST_OPENED"], "a") as told:
            told.write(f"{os.environ[ADDRESS]} {arguments[0]}\n")


if "SORTSHUFFLE_TEST_OPENED" in os.environ:
    if ADDRESS not in os.environ:
        os.environ[ADDRESS] = address_of(os.getppid())
    sys.addaudithook(tell)
