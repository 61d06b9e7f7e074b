"""DOPPLER's experiments (Yao et al. 2025), each as a table: ``python -m benchmarks.papers.doppler``.

Work is cut into jobs (:mod:`.jobs`, and :mod:`.executed` for what is run on devices), whose outcomes are kept one by one. The
parts (:mod:`.parts`) say which jobs they need, and tell what came out.
"""
