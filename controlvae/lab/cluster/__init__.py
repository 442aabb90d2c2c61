"""Many runs on one machine or on a cluster: plans, jobs, their state, and cancelling them."""
