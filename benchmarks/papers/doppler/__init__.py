"""DOPPLER's experiments (Yao et al. 2025), each as a table: ``python -m benchmarks.papers.doppler``.

Work is cut into jobs (:mod:`.jobs`, and :mod:`.executed` for jobs that run on devices), whose outcomes are kept one by one. The
parts (:mod:`.parts`) name the jobs that they need, and report their outcomes.
"""
