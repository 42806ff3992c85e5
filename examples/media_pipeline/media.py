"""Processing of files: thumbnail and histogram of an image, statistics of a table."""

import csv
import io
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from examples.media_pipeline.pictures import PALETTES, Picture, from_ppm, landscape, to_png, to_ppm

THUMBNAIL = 240  # pixels wide
BINS = 16
Report = Callable[[float], None]


class Made(msgspec.Struct, frozen=True):
    """A product, and facts about its source."""

    suffix: str
    body: bytes
    found: dict[str, Any]


def make(data: bytes, report: Report) -> Made:
    """Calls `report` with the percentage of rows that are done, row by row."""
    return _from_image(from_ppm(data), report) if data.startswith(b"P6\n") else _from_table(data, report)


def _from_image(picture: Picture, report: Report) -> Made:
    width = min(THUMBNAIL, picture.width)
    height = max(1, picture.height * width // picture.width)
    edges = [3 * (picture.width * n // width) for n in range(width + 1)]
    histogram = [Counter[int]() for _ in range(3)]
    pixels = bytearray()
    sums, rows = [0] * (3 * width), 0
    for y in range(picture.height):
        row = picture.row(y)
        for colour in range(3):
            histogram[colour].update(row[colour::3])
            for x in range(width):
                sums[3 * x + colour] += sum(row[edges[x] + colour : edges[x + 1] : 3])
        rows += 1
        if (y + 1) * height // picture.height > len(pixels) // (3 * width):
            # Each pixel of the thumbnail is the mean of those that it replaces.
            pixels += bytes(total // (rows * (edges[n // 3 + 1] - edges[n // 3]) // 3) for n, total in enumerate(sums))
            sums, rows = [0] * (3 * width), 0
        report(100 * (y + 1) / picture.height)
    thumbnail = to_png(Picture(width, height, bytes(pixels)))
    counts = {name: _bins(histogram[n]) for n, name in enumerate(("red", "green", "blue"))}
    return Made("png", thumbnail, {"width": picture.width, "height": picture.height, "histogram": counts})


def _bins(counts: Counter[int]) -> list[int]:
    bins = [0] * BINS
    for value, count in counts.items():
        bins[value * BINS // 256] += count
    return bins


def _from_table(data: bytes, report: Report) -> Made:
    """Computes mean and deviation in one pass, by Welford's method."""
    names, *rows = list(csv.reader(io.StringIO(data.decode())))
    lowest, highest = [math.inf] * len(names), [-math.inf] * len(names)
    mean, spread = [0.0] * len(names), [0.0] * len(names)
    for number, row in enumerate(rows, start=1):
        for column, text in enumerate(row):
            value = float(text)
            away = value - mean[column]
            mean[column] += away / number
            spread[column] += away * (value - mean[column])
            lowest[column], highest[column] = min(lowest[column], value), max(highest[column], value)
        report(100 * number / len(rows))
    columns = {
        name: {
            "min": lowest[n],
            "max": highest[n],
            "mean": round(mean[n], 6),
            "deviation": round(math.sqrt(spread[n] / len(rows)), 6),
        }
        for n, name in enumerate(names)
    }
    found = {"rows": len(rows), "columns": columns}
    return Made("json", json.dumps(found, indent=1).encode(), found)


def sample_files(width: int = 720, rows: int = 20_000) -> dict[str, bytes]:
    """Landscapes of this width, and a table of this many rows."""
    files = {f"{name}.ppm": to_ppm(landscape(name, width)) for name in PALETTES}
    dice = random.Random("weather")
    lines = ["temperature,pressure,wind"]
    for hour in range(rows):
        warmth = 12 + 9 * math.sin(hour / 12 * math.pi) + dice.gauss(0, 2)
        lines.append(f"{warmth:.2f},{dice.gauss(1013, 8):.1f},{abs(dice.gauss(4, 3)):.1f}")
    files["weather.csv"] = "\n".join([*lines, ""]).encode()
    return files
