"""NumPy arrays that pass for arrays in a GPU's memory."""

from __future__ import annotations

from typing import Any

import numpy as np


class OnDevice(np.ndarray[Any, Any]):
    """An array that says that it is in a GPU's memory."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__
