# SPDX-License-Identifier: MIT
"""What the classes with a C handle have in common: they are context managers, and close themselves."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

H = TypeVar("H", bound="Handle")


class _Callback(threading.local):
    """The process group, a tutti_pg_t *, whose callback this thread runs."""

    group: Any = None


callback = _Callback()


class Handle:
    _handle: Any

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_handle", None):
            return
        if callback.group is None:
            self.close()
        else:  # a callback, whose group may be closed here, dropped the last reference
            threading.Thread(target=self.close).start()
