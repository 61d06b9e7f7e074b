"""Place BERT-base on two emulated boards, train a policy on measured runs, and embed sentences; takes three minutes.

GiPH places it zero-shot; DOPPLER (or --policy hsdag) learns in simulation and then from measured runs. Their placements race
with a search, HEFT and the single devices; the fastest is the answer. Needs placeit with the extras learn and report.

python -m examples.bert_base
python -m examples.bert_base --resume --budget 60
python -m examples.bert_base --devices CPU@0,GPU.0 --policy hsdag
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from examples._place import parser, place_and_run
from examples.models import export_model
from placeit import PlaceitError


def main(arguments: list[str] | None = None) -> None:
    options_parser = parser("bert_base", __doc__)
    options_parser.add_argument("--batch", type=int, default=1, help="sentences in one inference (default: 1)")
    options_parser.add_argument("--seq", type=int, default=64, help="tokens in a sentence (default: 64)")
    options = options_parser.parse_args(arguments)
    shape = (options.batch, options.seq)
    sentences = {
        "input_ids": np.random.default_rng(options.seed).integers(1000, 30_000, shape),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = export_model("bert_base", Path(folder) / "bert_base.onnx", batch=options.batch, seq=options.seq)
            report = place_and_run(model, sentences, options)
    except PlaceitError as error:
        sys.exit(str(error))
    for number, vector in enumerate(report.outputs["pooler_output"]):
        print(f"sentence {number}: {len(vector)} numbers of norm {np.linalg.norm(vector):.2f} (the weights are random)")


if __name__ == "__main__":
    main()
