"""A loop begins an update of the weights and never finishes it."""

import torch

loader = iter(torch.utils.data.DataLoader([1, 2], batch_size=1))


class Updates:
    active = False

    def begin(self):
        if self.active:
            raise RuntimeError("begin called while an update is already active. Call finish first.")
        self.active = True


updates = Updates()
for _ in loader:
    updates.begin()
