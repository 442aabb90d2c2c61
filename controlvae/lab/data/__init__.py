"""Data sets: readers, splits, batch orders and the cache. Modules are imported on use."""
