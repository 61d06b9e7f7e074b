"""Export ResNet-50, Inception-V3 and BERT-base with random weights as ONNX files for other examples; takes a minute.

python -m examples.export_models models/            # all three
python -m examples.export_models models/ resnet50 --batch 4
"""

import argparse
import sys
from pathlib import Path

from examples.models import MODELS, export_model
from placeit.errors import PlaceitError


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="export_models", description="Export published architectures as ONNX.")
    parser.add_argument("folder", type=Path, help="output folder")
    parser.add_argument("models", nargs="*", metavar="model", help=f"models to export ({', '.join(MODELS)}); default: all")
    parser.add_argument("--batch", type=int, default=1, help="images or sentences in one inference (default: 1)")
    parser.add_argument("--seq", type=int, default=128, help="tokens in a sentence, for bert_base (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument("--dynamic", action="store_true", help="export a dynamic batch size")
    options = parser.parse_args(arguments)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        for name in options.models or MODELS:
            path = options.folder / f"{name}.onnx"
            print(export_model(name, path, batch=options.batch, seq=options.seq, seed=options.seed, dynamic=options.dynamic))
    except (PlaceitError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
