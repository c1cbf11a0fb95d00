"""The `jobs` package as earlier releases shipped it, to be tried against the database of this one.

`jobs-0001.zip` is that of commit 9ebafaf, the last one whose schema ends at revision 0001. A further one is
made by

    python -m tests.jobs.releases COMMIT REVISION

always byte for byte the same: stored, in the order of the names, without times.
"""
