"""The command line: `sortshuffle dump`, `report`, `verify`, `clean`, `serve`, `conf`.

The commands are thin mains over library calls. `cli.main` loads a command only when it is called, and no
command that looks into files imports Spark. Exit codes are the same everywhere: 0 all is well, 1 something is
wrong with the files, or some cannot be looked at, 2 the call is wrong, 3 the output cannot be written,
4 a store or a service refuses or does not answer, or a store's library is not installed.

main                          finds the command
dump, verify                  look into files: pair_report, exchanges, records, key_file
  dump_text, dump_json        the output of dump, for people and as JSON
report                        writes a page (report_files); summary prints the same, also for dump
  application_report          writes that on an application; the driver runs it
clean                         removes map outputs: cleaning (this host), url_cleaning (stores)
serve                         runs a shuffle service; service_page prints the status of a running one
conf                          prints the settings of the shuffle manager
output, printing, durations   output of all commands, failures of standard output, times
unseen                        places that a command cannot look into
"""
