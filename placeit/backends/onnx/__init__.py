"""ONNX files, read by OpenVINO or by ONNX Runtime, and segments cut out of them.

May import ``backends/openvino``, ``devices`` and ``core``; no module here imports the package ``onnx`` before a model needs
it but those that cut segments. Read :mod:`~placeit.backends.onnx.load` first, then :mod:`~placeit.backends.onnx.segments`.
"""
