"""The command `tools/bench/compare`: the same work by several systems, side by side.

work             the cases: their data and their memory
rounds           the order of turns, and the checks of answers
turn             one run of one system, in a control group of its own
environments     the systems' virtual environments
results          the record, the table
contestants      a program for each system, which runs in its environment and imports nothing from here
"""
