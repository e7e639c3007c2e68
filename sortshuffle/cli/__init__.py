"""The command line: `sortshuffle dump`, `verify`, `clean`, `serve`, `conf`.

Thin mains over library calls. A command is loaded when it is called (`cli.main`), and none of those that look
into files imports Spark. Exit codes are the same everywhere: 0 all is well, 1 something is wrong with the
files, or a directory cannot be listed, 2 the call is wrong, 3 the output cannot be written, 4 a store or a
service refuses or does not answer, or a store's library is not installed.
"""
