"""Many runs on many processes and machines: plans, jobs, their state, searches."""
