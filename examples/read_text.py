"""Read text in a stream of images with a detector, a classifier and a recogniser; takes a minute.

python -m examples.read_text --devices CPU@0,CPU@1 --rate 5 --pictures 20

The detector finds lines of text in a picture, the classifier decides whether each line is upside down, and the recogniser reads
it. A picture may have any number of lines. The models come with the package ``rapidocr-onnxruntime``. They are placed so that
all three together read the most pictures per second, by the measured times of each model on each device.
"""

import argparse
import contextlib
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cv2
import numpy as np
import onnx

from placeit import Inputs, ModelStage, PlacedStages, PlaceitError, Session, place_stages
from placeit.errors import UsageError
from placeit.serving.server import Outputs
from placeit.simulator.load import check_rate

SIDE, HEIGHT = 320, 48  # pixels: side of a picture, height of a line
WIDTHS = {"classifier": 192, "recogniser": 320}
FILES = {
    "detector": ("ch_PP-OCRv4_det_infer.onnx", (1, 3, SIDE, SIDE)),
    "classifier": ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, HEIGHT, WIDTHS["classifier"])),
    "recogniser": ("ch_PP-OCRv4_rec_infer.onnx", (1, 3, HEIGHT, WIDTHS["recogniser"])),
}
TEXT, BOX, UPSIDE_DOWN = 0.3, 0.5, 0.9  # thresholds
WORDS = ("DEVICE", "STREAM", "QUEUE", "MODEL")


def texts_of(number: int) -> list[str]:
    """Return the lines of text of a picture: zero to three."""
    return [f"{WORDS[(number + i) % 4]}{number}" for i in range(number % 4)]


def draw_page(lines: Sequence[str]) -> np.ndarray:
    """Draw a picture, ``uint8[320, 320, 3]``, of some lines of text."""
    page = np.full((SIDE, SIDE, 3), 255, np.uint8)
    for number, line in enumerate(lines):
        cv2.putText(page, line, (20, 60 + 80 * number), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (0, 0, 0), 2, cv2.LINE_AA)
    return page


def network_input(picture: np.ndarray) -> dict[str, np.ndarray]:
    """Return a picture as the input of a network: ``float32[1, 3, H, W]``, from -1 to 1."""
    return {"x": np.ascontiguousarray((picture.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None])}


def fitted(line: np.ndarray, width: int) -> np.ndarray:
    """Scale a line to a height of 48 pixels, and pad it to a width."""
    scaled = min(width, max(1, round(line.shape[1] * HEIGHT / line.shape[0])))
    padded = np.full((HEIGHT, width, 3), 127, np.uint8)
    padded[:, :scaled] = cv2.resize(line, (scaled, HEIGHT))
    return padded


def cut_lines(page: np.ndarray, outputs: Sequence[Outputs]) -> list[np.ndarray]:
    """Crop the lines that the detector has found in a picture, from top to bottom."""
    ((probability,),) = (next(iter(values.values()))[0] for values in outputs)
    contours, _ = cv2.findContours((probability > TEXT).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    lines = []
    for x, y, w, h in sorted(map(cv2.boundingRect, contours), key=lambda box: box[1]):
        if w < 8 or h < 8 or probability[y : y + h, x : x + w].mean() < BOX:
            continue
        margin = round(0.45 * h)  # the detector finds only the middle of a line
        lines.append(page[max(0, y - margin) : y + h + margin, max(0, x - margin) : x + w + margin])
    return lines


def turned(lines: list[np.ndarray], outputs: Sequence[Outputs]) -> list[np.ndarray]:
    """Rotate the lines that are upside down according to the classifier."""
    upside_down = [next(iter(values.values()))[0, 1] > UPSIDE_DOWN for values in outputs]
    return [line[::-1, ::-1] if turn else line for line, turn in zip(lines, upside_down, strict=True)]


def reading(characters: Sequence[str], outputs: Sequence[Outputs]) -> list[str]:
    """Decode the recogniser's outputs: the most likely character at each position, without repetitions and blanks."""
    texts = []
    for values in outputs:
        best = [number for number, _ in itertools.groupby(next(iter(values.values()))[0].argmax(1).tolist())]
        texts.append("".join(characters[number] for number in best if number))
    return texts


@contextlib.contextmanager
def open_reader(devices: Sequence[str]) -> Iterator[PlacedStages]:
    """Open the three models, and place them on the devices."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise UsageError("The models come with rapidocr-onnxruntime: pip install rapidocr-onnxruntime")
    folder = Path(spec.origin).parent / "models"
    metadata = {entry.key: entry.value for entry in onnx.load(folder / FILES["recogniser"][0]).metadata_props}
    characters = ["", *metadata["character"].splitlines(), " "]

    def split(name: str) -> Callable[[Any], list[dict[str, np.ndarray]]]:
        return lambda lines: [network_input(fitted(line, WIDTHS[name])) for line in lines]

    with contextlib.ExitStack() as stack:
        detector, classifier, recogniser = (
            stack.enter_context(Session(folder / file, devices, inputs=Inputs(shapes={"x": shape})))
            for file, shape in FILES.values()
        )
        stages = [
            ModelStage("detector", detector, lambda page: [network_input(page)], cut_lines),
            ModelStage("classifier", classifier, split("classifier"), turned),
            ModelStage("recogniser", recogniser, split("recogniser"), lambda _, outputs: reading(characters, outputs)),
        ]
        yield place_stages(stages, [draw_page(texts_of(number)) for number in range(4)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Read text in pictures with three models, as pictures come in.")
    parser.add_argument("--devices", default="CPU@0", help="devices for the three models, such as CPU@0,CPU@1 (default: CPU@0)")
    parser.add_argument("--rate", type=float, default=5.0, help="pictures per second (default: 5)")
    parser.add_argument("--pictures", type=int, default=20, help="number of pictures (default: 20)")
    options = parser.parse_args()
    try:
        check_rate(options.rate)
    except UsageError as error:
        parser.error(str(error))
    if options.pictures < 1:
        parser.error(f"--pictures is {options.pictures}; it must be at least 1.")
    try:
        read(options.devices.split(","), options.rate, options.pictures)
    except PlaceitError as error:
        sys.exit(str(error))


def read(devices: Sequence[str], rate: float, count: int) -> None:
    """Submit pictures at a rate, and print the results."""
    pages = [texts_of(number) for number in range(count)]
    with open_reader(devices) as placed:
        for name, where in placed.where.items():
            print(f"{name} on {', '.join(where)}")
        print(
            f"at most {placed.capacity:.2f} pictures per second by measured times: then {placed.bottleneck.name} is always busy"
        )
        ended: SimpleQueue[tuple[float, int]] = SimpleQueue()
        with placed.open() as servers, ThreadPoolExecutor(16) as pool:
            begin, futures = time.perf_counter(), list[Future[list[str]]]()
            for number, lines in enumerate(pages):
                time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
                futures.append(pool.submit(placed.run, servers, draw_page(lines)))
                futures[-1].add_done_callback(lambda _, number=number: ended.put((time.perf_counter(), number)))
            read = [future.result() for future in futures]
        ends = [ended.get() for _ in pages]  # a callback may run after result() has returned
    right = sum(found == lines for found, lines in zip(read, pages, strict=True))
    print(f"{len(pages)} pictures in, {len(read)} out, {right} read as they were written")
    print(", ".join(f"{server.stats().outcomes['succeeded']} requests to the {name}" for name, server in servers.items()))
    p50, p95 = np.percentile([at - begin - number / rate for at, number in ends], (50, 95)) * 1e3
    seconds = max(at for at, _ in ends) - begin
    print(f"{len(pages) / seconds:.2f} pictures per second; latency p50 {p50:.0f} ms, p95 {p95:.0f} ms from arrival")


if __name__ == "__main__":
    main()
