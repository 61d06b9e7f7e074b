"""Models that OpenVINO reads, ONNX files and OpenVINO IR, and parts of them."""
