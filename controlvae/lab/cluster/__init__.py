"""Many runs on many processes and machines."""
