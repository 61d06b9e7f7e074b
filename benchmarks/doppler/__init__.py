"""DOPPLER's experiments (Yao et al. 2025), each as a table: ``python -m benchmarks.doppler``.

Work is cut into jobs (:mod:`benchmarks.doppler.jobs`, and :mod:`benchmarks.doppler.executed` for what is run on devices), whose
outcomes are kept one by one. The parts (:mod:`benchmarks.doppler.parts`) say which jobs they need, and tell what came out.
"""
