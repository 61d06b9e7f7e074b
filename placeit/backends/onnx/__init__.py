"""ONNX files that OpenVINO or ONNX Runtime reads, and segments cut out of them.

May import ``backends/openvino``, ``devices`` and ``core``. Only modules that cut segments import the package ``onnx`` when they
are imported. Read :mod:`~placeit.backends.onnx.load` first, then :mod:`~placeit.backends.onnx.segments`.
"""
