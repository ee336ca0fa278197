# SPDX-License-Identifier: MIT
"""torch_alloc.py: trains a small PyTorch model with weir as the allocator.

    PYTHONPATH=.../share/weir/python WEIR_PREALLOC=1GiB python3 torch_alloc.py
"""

import torch
import weir_cuda.torch

weir_cuda.torch.install()  # must be called before the first tensor is created on the GPU

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(4096, 512, device="cuda")
wanted = data[:, :10].argmax(1)

first = None
for step in range(50):
    batch = torch.randperm(4096, device="cuda")[:256 + 8 * step]
    loss = torch.nn.functional.cross_entropy(model(data[batch]), wanted[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    first = first or loss.item()

figures = weir_cuda.stats(0)
print(f"loss {first:.3f} -> {loss.item():.3f}; weir served {figures.allocs} requests, "
      f"{figures.cache_hits} from caches, {figures.growths} growth steps, reserve {figures.reserved >> 20} MiB")
assert loss.item() < first and figures.allocs > 1000

# A request that is too large raises an exception; the existing tensors remain usable.
try:
    torch.empty(1 << 44, device="cuda")
except RuntimeError as error:
    print("refused:", str(error).splitlines()[0][:120])
else:
    raise SystemExit("16 TiB were served")
