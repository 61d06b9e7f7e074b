"""GiPH's experiments (Hu et al. 2023), each as a table and a figure: ``python -m benchmarks.papers.giph``.

Work is cut into jobs (:mod:`.jobs`): trainings, searches of a policy over test problems, and a few others. The parts
(:mod:`.parts`) name the jobs that they need; all jobs run in worker processes, and then each part reports their outcomes.
"""
