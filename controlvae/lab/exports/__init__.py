"""Export of trained models: programs of torch and ONNX, weights, and a card for a model hub."""
