"""Suite of training problems on which control laws are compared with the best tuned rivals."""
