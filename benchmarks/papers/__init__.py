"""The experiments of papers, each a command of its own: ``python -m benchmarks.papers.giph``, or doppler, hsdag or stream."""
