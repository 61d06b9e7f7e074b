"""ONNX files, read by OpenVINO or by ONNX Runtime, and segments cut out of them.

May import ``backends/openvino``, ``devices`` and ``core``. Only modules that cut segments import the package ``onnx`` before a
model needs it. Read :mod:`~placeit.backends.onnx.load` first, then :mod:`~placeit.backends.onnx.segments`.
"""
