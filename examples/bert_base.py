"""Place BERT-base on the devices of this machine, and embed sentences with it.

A second placement is learned from runs, and both are compared with the best single device (``--learn 0`` leaves that out).

python -m examples.bert_base --devices examples/cluster.yaml
python -m examples.bert_base --devices CPU@0,CPU@1 --seq 384 --placer metis --placer annealing --learn 0
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from examples._place import parser, place_and_run
from examples.models import export_model
from placeit import PlaceitError


def main(arguments: list[str] | None = None) -> None:
    known = parser("bert_base", __doc__)
    known.add_argument("--batch", type=int, default=1, help="sentences in one inference (default: 1)")
    known.add_argument("--seq", type=int, default=128, help="tokens in a sentence (default: 128)")
    options = known.parse_args(arguments)
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
