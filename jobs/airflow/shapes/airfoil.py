"""Airfoils of the NACA four-digit series.

E. N. Jacobs, K. E. Ward, R. M. Pinkerton, NACA Report 460 (1933). The trailing edge is closed: the last
coefficient of the thickness is -0.1036 instead of -0.1015.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from meshrun.runner.errors import UserError
from meshrun.runner.region import HostArray

POINTS = 800  # of an outline
WORD = re.compile(r"([^@]*)(?:@(.*))?")


@dataclass(frozen=True)
class Airfoil:
    """camber, thickness: largest, as fractions of the chord. position: of the largest camber, likewise.
    angle: of attack, in degrees; positive: nose up."""

    camber: float
    position: float
    thickness: float
    angle: float

    def outline(self) -> HostArray:
        """Return (POINTS, 2) corners (x along the flow, y upwards), in chords from the middle of the chord.

        From the trailing edge over the lower side to the leading edge and back.
        """
        x = (1 - np.cos(np.linspace(0, math.pi, POINTS // 2 + 1))) / 2  # close together at both ends
        series = 0.2969 * np.sqrt(x) + x * (-0.1260 + x * (-0.3516 + x * (0.2843 - 0.1036 * x)))
        half = np.maximum(5 * self.thickness * series, 0)
        half[-1] = 0  # but for rounding
        m, p = self.camber, self.position
        if m > 0:
            front = x < p
            scale = np.where(front, m / p**2, m / (1 - p) ** 2)
            line = scale * (np.where(front, 0, 1 - 2 * p) + 2 * p * x - x**2)
            slope = np.arctan(2 * scale * (p - x))
        else:
            line, slope = np.zeros_like(x), np.zeros_like(x)
        upper = np.stack([x - half * np.sin(slope), line + half * np.cos(slope)], 1)
        lower = np.stack([x + half * np.sin(slope), line - half * np.cos(slope)], 1)
        around = np.concatenate([lower[::-1], upper[1:-1]]) - [0.5, 0]
        turn = math.radians(self.angle)
        cosine, sine = math.cos(turn), math.sin(turn)
        found: HostArray = around @ np.array([[cosine, -sine], [sine, cosine]])
        return found


def parse(word: str) -> Airfoil:
    """Read `2412` or `2412@8`. UserError otherwise."""
    digits, angle_text = ((found := WORD.fullmatch(word)) and found.groups()) or (word, None)
    hint = "airfoil:2412@8"
    if not re.fullmatch(r"[0-9]{4}", digits, re.ASCII):
        raise UserError(
            "the airfoil has no NACA number of four digits",
            got=repr(digits),
            expected="four digits",
            hint=hint,
        )
    camber, position, thickness = int(digits[0]) / 100, int(digits[1]) / 10, int(digits[2:]) / 100
    if thickness == 0:
        raise UserError(
            "the airfoil has no thickness", got=digits, expected="01 to 99 as the last two digits", hint=hint
        )
    if camber > 0 and position == 0:
        expected = "1 to 9 as the second digit, the place of the largest camber in tenths of the chord"
        raise UserError("the airfoil has camber without a place", got=digits, expected=expected, hint=hint)
    try:
        angle = float(angle_text) if angle_text is not None else 0.0
    except ValueError:
        angle = math.nan
    if not -90 <= angle <= 90:
        expected = "degrees from -90 to 90, positive: nose up"
        raise UserError(
            "the airfoil has no such angle of attack", got=angle_text, expected=expected, hint=hint
        )
    return Airfoil(camber, position, thickness, angle)
