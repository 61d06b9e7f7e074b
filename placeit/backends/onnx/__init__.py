"""ONNX files, and parts of their models."""
