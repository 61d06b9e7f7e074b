"""The experiments of papers, with one command each: ``python -m benchmarks.papers.giph``, or doppler, hsdag or stream."""
