"""Files that `controlvae new` copies: complete programs to start from."""
