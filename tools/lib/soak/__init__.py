"""`tools/soak`: random jobs with random faults on a cluster of three hosts, checked against plain Spark.

    plan         what happens, drawn from a seed: applications, their jobs, the faults and their moments
    work         what a job computes, with this package or with plain Spark
    driver       the process that runs the jobs of an application
    application  that process as the soak sees it
    faults       what is broken, and how
    checks       what is left of an application when it has ended
    report       what is counted, the table, the record
    place        the namespaces in which all of it runs
    run          the loop
    hook         put on the path of every Python there: a signal makes it show its stacks

A soak is the same for the same seed as far as it can be: which jobs, data, faults, and after which task each
fault comes. How far the job is when a process has died is up to the machine.
"""
