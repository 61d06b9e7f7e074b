"""Models that OpenVINO reads (ONNX files and OpenVINO IR), and segments cut out of them.

May import ``devices`` and ``core``, and of ``backends/onnx`` only what reads files. Read
:mod:`~placeit.backends.openvino.reader` first, then :mod:`~placeit.backends.openvino.model` and
:mod:`~placeit.backends.openvino.view`.
"""
