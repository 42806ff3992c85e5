"""How both stores order the jobs of a queue level: by `seq`, the microsecond since 1970 at which a job became due."""

FIRST_SEQ = 1  # of jobs that became due before; 0 is below all jobs
SEQ_STEP = 4
"""By how much the jobs of one insert follow each other, so that they keep their order. No store inserts faster, so the
next insert comes behind them; and a window of seqs sees about as many jobs wherever it opens."""
LATE_COMMIT = 500_000
"""What became due longer ago than this has been committed, unless its transaction was long: then a hint or a peek finds
it."""
