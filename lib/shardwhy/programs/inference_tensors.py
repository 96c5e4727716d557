"""Features that were computed in inference mode are trained on."""

import torch

with torch.inference_mode():
    features = torch.ones(4)
weight = torch.ones(4, requires_grad=True)
(weight * features).sum().backward()
