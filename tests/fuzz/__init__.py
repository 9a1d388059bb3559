"""Generated attacks. `FUZZERS` has them all by name."""

from tests.fuzz.directories import DIRECTORIES
from tests.fuzz.frames import FRAMES
from tests.fuzz.requests import REQUESTS
from tests.fuzz.shapes import SHAPES

FUZZERS = {each.name: each for each in (FRAMES, SHAPES, REQUESTS, DIRECTORIES)}
