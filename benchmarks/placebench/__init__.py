"""Makes PlaceBench: its graphs, and the best placements that are known.

python -m benchmarks.placebench build [MODEL ...]    graphs of all models, or of some, into placeit/bench/set.json.gz
python -m benchmarks.placebench best [FILE ...]      better placements into placeit/bench/best.json, and the page's table
"""
