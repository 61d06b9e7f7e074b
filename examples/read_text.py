"""Read text in pictures with three models, as pictures come in: a detector, a classifier and a recogniser.

python -m examples.read_text --devices CPU@0,CPU@1 --rate 5 --pictures 20

The detector finds lines of text in a picture, the classifier says of each line whether it is upside down, and the recogniser
reads it. A picture may have any number of lines. The models come with the package ``rapidocr-onnxruntime``. The detector runs
on the first device, the other two on the last.
"""

import argparse
import contextlib
import importlib.util
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx

from placeit import Pipeline, Session, Stage
from placeit.runtime.serving import Outputs

SIDE, HEIGHT = 320, 48  # of pictures, and of lines
WIDTHS = {"classifier": 192, "recogniser": 320}
FILES = {
    "detector": ("ch_PP-OCRv4_det_infer.onnx", (1, 3, SIDE, SIDE)),
    "classifier": ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, HEIGHT, WIDTHS["classifier"])),
    "recogniser": ("ch_PP-OCRv4_rec_infer.onnx", (1, 3, HEIGHT, WIDTHS["recogniser"])),
}
TEXT, BOX, UPSIDE_DOWN = 0.3, 0.5, 0.9  # thresholds


def draw_page(lines: Sequence[str]) -> np.ndarray:
    """Draw a picture, ``uint8[320, 320, 3]``, of some lines of text."""
    page = np.full((SIDE, SIDE, 3), 255, np.uint8)
    for number, line in enumerate(lines):
        cv2.putText(page, line, (20, 60 + 80 * number), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 2, cv2.LINE_AA)
    return page


def network_input(picture: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.ascontiguousarray((picture.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None])}


def fitted(line: np.ndarray, width: int) -> np.ndarray:
    """Scale a line to a height of 48, and fill it up to a width."""
    wide = min(width, max(1, round(line.shape[1] * HEIGHT / line.shape[0])))
    made = np.full((HEIGHT, width, 3), 127, np.uint8)
    made[:, :wide] = cv2.resize(line, (wide, HEIGHT))
    return made


def cut_lines(page: np.ndarray, outputs: Sequence[Outputs]) -> list[np.ndarray]:
    """Cut the lines out of a picture that the detector has found there, from top to bottom."""
    ((probability,),) = (next(iter(values.values()))[0] for values in outputs)
    contours, _ = cv2.findContours((probability > TEXT).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    lines = []
    for x, y, w, h in sorted(map(cv2.boundingRect, contours), key=lambda box: box[1]):
        if w < 8 or h < 8 or probability[y : y + h, x : x + w].mean() < BOX:
            continue
        room = round(0.45 * h)  # what is found is the middle of a line
        lines.append(page[max(0, y - room) : y + h + room, max(0, x - room) : x + w + room])
    return lines


def turned(lines: list[np.ndarray], outputs: Sequence[Outputs]) -> list[np.ndarray]:
    """Turn the lines that the classifier says are upside down."""
    upside_down = [next(iter(values.values()))[0, 1] > UPSIDE_DOWN for values in outputs]
    return [line[::-1, ::-1] if turn else line for line, turn in zip(lines, upside_down, strict=True)]


def reading(characters: Sequence[str], outputs: Sequence[Outputs]) -> list[str]:
    """What the recogniser has read: its best guess at each position, without repetitions and blanks."""
    texts = []
    for values in outputs:
        best = [number for number, _ in itertools.groupby(next(iter(values.values()))[0].argmax(1).tolist())]
        texts.append("".join(characters[number] for number in best if number))
    return texts


@contextlib.contextmanager
def open_reader(devices: Sequence[str]) -> Iterator[Pipeline]:
    """Open the three models, one stage each."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("The models come with rapidocr-onnxruntime: pip install rapidocr-onnxruntime")
    folder = Path(spec.origin).parent / "models"
    metadata = {entry.key: entry.value for entry in onnx.load(folder / FILES["recogniser"][0]).metadata_props}
    characters = ["", *metadata["character"].splitlines(), " "]
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, (file, shape) in FILES.items():
            device = devices[0] if name == "detector" else devices[-1]
            session = stack.enter_context(Session(folder / file, [device], input_shapes={"x": shape}))
            whole = session.placement(np.zeros(len(session.grouping.groups), int))
            # as one segment, so that nothing has to be profiled
            servers[name] = stack.enter_context(session.serve(replace(whole, segments=np.zeros(len(whole.op_names), np.int32))))

        def split(name: str) -> Any:
            return lambda lines: [network_input(fitted(line, WIDTHS[name])) for line in lines]

        stages = [
            Stage("detector", servers["detector"], lambda page: [network_input(page)], cut_lines),
            Stage("classifier", servers["classifier"], split("classifier"), turned),
            Stage("recogniser", servers["recogniser"], split("recogniser"), lambda _, outputs: reading(characters, outputs)),
        ]
        yield stack.enter_context(Pipeline(stages))


def main() -> None:
    parser = argparse.ArgumentParser(description="Read text in pictures with three models, as pictures come in.")
    parser.add_argument("--devices", default="CPU@0", help="device of the detector, and of the other two")
    parser.add_argument("--rate", type=float, default=5.0, help="pictures per second")
    parser.add_argument("--pictures", type=int, default=20)
    options = parser.parse_args()
    words = ("DEVICE", "STREAM", "QUEUE", "MODEL")
    pages = [[f"{words[(n + i) % 4]}{n}" for i in range(n % 4)] for n in range(options.pictures)]
    with open_reader(options.devices.split(",")) as reader:
        begin, latency, futures = time.perf_counter(), list[float](), []
        for number, lines in enumerate(pages):
            due = begin + number / options.rate
            time.sleep(max(0.0, due - time.perf_counter()))
            futures.append(reader.submit(draw_page(lines)))
            futures[-1].add_done_callback(lambda _, due=due: latency.append(time.perf_counter() - due))
        right = sum(future.result() == lines for future, lines in zip(futures, pages, strict=True))
        seconds = time.perf_counter() - begin
    print(f"{reader.entered} pictures in, {reader.left} out, {right} read as they were written")
    print(", ".join(f"{count} requests to the {name}" for name, count in reader.requests.items()))
    p50, p95 = np.percentile(latency, (50, 95)) * 1e3
    print(f"{len(pages) / seconds:.2f} pictures per second; latency p50 {p50:.0f} ms, p95 {p95:.0f} ms from arrival")


if __name__ == "__main__":
    main()
