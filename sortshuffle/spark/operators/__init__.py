"""What `ShuffleFrame`'s methods do, a module for each family of them: functions that take and give `Rows`."""
