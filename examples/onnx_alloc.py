# SPDX-License-Identifier: MIT
"""onnx_alloc.py: runs a model in ONNX Runtime with weir as the allocator, on a stream of PyTorch.

    PYTHONPATH=.../share/weir/python python3 onnx_alloc.py model.onnx
"""

import ctypes
import sys

import numpy
import onnxruntime
import torch
import weir_cuda

module = weir_cuda.adapters()
stream = torch.cuda.Stream()
module.weir_onnx_stream(ctypes.c_void_p(stream.cuda_stream))  # without this call, each free waits for the device
options = {
    "device_id": 0,
    "user_compute_stream": str(stream.cuda_stream),
    **{f"gpu_external_{name}": str(ctypes.cast(getattr(module, f"weir_onnx_{name}"), ctypes.c_void_p).value)
       for name in ("alloc", "free", "empty_cache")},
}
session = onnxruntime.InferenceSession(sys.argv[1], providers=[("CUDAExecutionProvider", options)])
feed = {i.name: numpy.ones([d if isinstance(d, int) else 1 for d in i.shape], numpy.float32)
        for i in session.get_inputs()}
for _ in range(10):
    results = session.run(None, feed)

figures = weir_cuda.stats(0)
print(f"{len(results)} results; weir served {figures.allocs} requests, reserve {figures.reserved >> 20} MiB")
assert figures.allocs > 0
