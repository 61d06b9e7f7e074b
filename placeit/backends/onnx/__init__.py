"""ONNX files, and segments cut out of them."""
