"""The laboratory: train, evaluate, compare and report models under control. Needs `controlvae[lab]`."""
