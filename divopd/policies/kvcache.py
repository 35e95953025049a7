"""A key/value cache that grows in place: appending a few tokens a turn must not copy the whole history each time."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


class RoomyLayer(DynamicLayer):
    """One layer's keys and values, (rows, heads, tokens, width), as views of buffers with room to spare."""

    keys: torch.Tensor | None
    values: torch.Tensor | None
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append along the tokens; the keys and values so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < after:
            rows, heads, _, width = key_states.shape
            room = [key_states.new_empty((rows, heads, max(64, 2 * after), width)) for _ in range(2)]
            if before and self.keys is not None and self.values is not None:
                room[0][:, :, :before], room[1][:, :, :before] = self.keys, self.values
            self._buffers = (room[0], room[1])
        keys, values = self._buffers
        keys[:, :, before:after], values[:, :, before:after] = key_states, value_states
        self.keys, self.values = keys[:, :, :after], values[:, :, :after]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows."""
        if self._buffers is not None:
            length = self.get_seq_length()
            keys, values = self._buffers[0][indices], self._buffers[1][indices]
            self._buffers = (keys, values)
            self.keys, self.values = keys[:, :, :length], values[:, :, :length]


def make_cache() -> Cache:
    """An empty cache; layers are added as the model asks for them."""
    return Cache(layer_class_to_replicate=RoomyLayer)
