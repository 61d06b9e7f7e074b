"""Models that OpenVINO reads (ONNX files and OpenVINO IR), and segments cut out of them."""
