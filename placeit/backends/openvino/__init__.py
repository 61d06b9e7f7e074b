"""Models that OpenVINO reads (ONNX files and OpenVINO IR), and segments cut out of them.

May import ``devices``, ``core`` and the modules beside this folder. Read :mod:`~placeit.backends.openvino.reader` first, then
:mod:`~placeit.backends.openvino.model` and :mod:`~placeit.backends.openvino.view`.
"""
