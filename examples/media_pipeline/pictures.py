"""Pictures in plain Python: landscapes to work on, and the PNG of a thumbnail."""

import math
import random
import struct
import zlib
from dataclasses import dataclass

Colour = tuple[int, int, int]
# Of each landscape: the sky from its top to the horizon, the sun, and the ridges from far to near.
PALETTES: dict[str, tuple[Colour, Colour, Colour, tuple[Colour, ...]]] = {
    "dawn": ((38, 44, 98), (250, 176, 142), (255, 232, 190), ((150, 110, 150), (96, 72, 122), (48, 40, 80))),
    "dunes": ((96, 164, 216), (252, 232, 196), (255, 250, 232), ((224, 176, 120), (198, 138, 84), (142, 88, 52))),
    "fjord": ((24, 60, 88), (170, 214, 214), (244, 246, 232), ((110, 154, 168), (56, 104, 124), (20, 50, 66))),
    "heath": ((92, 72, 128), (246, 188, 202), (255, 240, 220), ((156, 120, 160), (120, 84, 128), (70, 56, 84))),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """Pixels row by row, three bytes each."""

    width: int
    height: int
    pixels: bytes

    def row(self, y: int) -> bytes:
        return self.pixels[3 * self.width * y : 3 * self.width * (y + 1)]


def landscape(name: str, width: int) -> Picture:
    """The same each time: a sky, a low sun and three ridges."""
    top, horizon, sun, colours = PALETTES[name]
    height = width * 2 // 3
    dice = random.Random(name)
    ridges = [_ridge(dice, width, height, depth) for depth in range(len(colours))]
    sun_x, sun_y, radius = width * dice.uniform(0.25, 0.75), height * 0.42, height * 0.09
    pixels = bytearray()
    for y in range(height):
        share = min(1.0, y / (height * 0.62))
        row = bytearray(bytes(_mix(top, horizon, share)) * width)
        if abs(y - sun_y) < radius:
            half = math.sqrt(radius**2 - (y - sun_y) ** 2)
            left, right = int(sun_x - half), int(sun_x + half)
            row[3 * left : 3 * right] = bytes(sun) * (right - left)
        for ridge, colour in zip(ridges, colours, strict=True):
            shade = bytes(colour)
            for x in range(width):
                if y >= ridge[x]:
                    row[3 * x : 3 * x + 3] = shade
        pixels += row
    return Picture(width, height, bytes(pixels))


def _ridge(dice: random.Random, width: int, height: int, depth: int) -> list[int]:
    waves = [(dice.uniform(1, 3) * 2**n, dice.uniform(0, math.tau), 0.09 / 1.9**n) for n in range(5)]
    base = 0.52 + 0.15 * depth
    return [
        int(height * (base - sum(size * math.sin(math.tau * pace * x / width + start) for pace, start, size in waves)))
        for x in range(width)
    ]


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def to_ppm(picture: Picture) -> bytes:
    return b"P6\n%d %d\n255\n" % (picture.width, picture.height) + picture.pixels


def from_ppm(data: bytes) -> Picture:
    """Raises ValueError if it is not a PPM."""
    magic, size, depth, pixels = data.split(b"\n", 3)
    width, height = (int(number) for number in size.split())
    if (magic, depth) != (b"P6", b"255") or len(pixels) != 3 * width * height:
        raise ValueError(f"this is not a PPM of {width} × {height} pixels")
    return Picture(width, height, pixels)


def to_png(picture: Picture) -> bytes:
    rows = b"".join(b"\0" + picture.row(y) for y in range(picture.height))
    head = struct.pack(">IIBBBBB", picture.width, picture.height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
