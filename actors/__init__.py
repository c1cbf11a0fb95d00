"""Work only: a bell rings, claim, work, commit, ring the next. Knows Dramatiq."""
