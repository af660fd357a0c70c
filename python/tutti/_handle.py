# SPDX-License-Identifier: MIT
"""What the classes with a C handle have in common: they are context managers, and close themselves."""

from __future__ import annotations

from typing import Any, TypeVar

H = TypeVar("H", bound="Handle")


class Handle:
    _handle: Any

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
