# SPDX-License-Identifier: MIT
"""PyTorch: trains GPT-2 on several GPUs.  torchrun starts a process for each GPU.

Each process has the whole model (ddp) or a part of it (fsdp).  NCCL adds up the gradients."""

import os

import common
import torch
import torch.distributed as distributed
import torch_common
from torch_model import LENGTH, WORDS, Model, loss_of


def spread(model, way, rank):
    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main():
    options = common.arguments(30, way=("ddp", "ddp or fsdp"), size=("medium", "small or medium"),
                               batch=(8, "sequences of a process"))
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model = spread(Model(options.size).cuda(), options.way, rank)
    device = common.Device(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(rank)
    tokens = torch.randint(WORDS, (options.batch, LENGTH + 1)).cuda()
    last = [0.0]

    def iterate(_):
        loss = loss_of(model, tokens)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        last[0] = loss.item()
        torch.cuda.synchronize()

    times = common.measure(iterate, options.iterations, device)
    if rank == 0:
        common.report(f"torch-{options.way}-{options.size}", times, device, torch_common.peak(), last[0],
                      **torch_common.facts())
    distributed.destroy_process_group()


main()
