"""Sentences and dialogs as rows of token ids."""
