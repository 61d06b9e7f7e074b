"""Place Inception-V3 on two emulated boards, train a policy on measured runs, and classify images; takes four minutes.

GiPH places it zero-shot; DOPPLER (or --policy hsdag) learns in simulation and then from measured runs. Their placements race
with a search, HEFT and the single devices; the fastest is the answer. Needs placeit with the extras learn and report.

python -m examples.inception_v3
python -m examples.inception_v3 --resume --budget 60
python -m examples.inception_v3 --devices CPU@0,GPU.0 --policy hsdag
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from examples._place import parser, place_and_run
from examples.models import export_model
from placeit import PlaceitError


def main(arguments: list[str] | None = None) -> None:
    options_parser = parser("inception_v3", __doc__)
    options_parser.add_argument("--batch", type=int, default=1, help="images in one inference (default: 1)")
    options = options_parser.parse_args(arguments)
    images = np.random.default_rng(options.seed).normal(size=(options.batch, 3, 299, 299)).astype(np.float32)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = export_model("inception_v3", Path(folder) / "inception_v3.onnx", batch=options.batch)
            report = place_and_run(model, {"image": images}, options)
    except PlaceitError as error:
        sys.exit(str(error))
    for number, scores in enumerate(report.outputs["scores"]):
        print(f"image {number}: classes {', '.join(map(str, np.argsort(scores)[:-6:-1]))} (the weights are random)")


if __name__ == "__main__":
    main()
