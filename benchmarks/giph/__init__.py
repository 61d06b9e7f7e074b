"""GiPH's experiments (Hu et al. 2023, section 5 and Appendix B), each as a table and a figure: ``python -m benchmarks.giph``.

Work is cut into jobs (:mod:`benchmarks.giph.jobs`): trainings, searches of a policy over test problems, and a few others. The
parts (:mod:`benchmarks.giph.parts`) say which jobs they need; all jobs of all parts run in worker processes, and then each
part tells what came out.
"""
