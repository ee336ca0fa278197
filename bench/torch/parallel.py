#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch: trains on all GPUs of the machine with random tokens, with one process for each GPU.

ddp: a model of the size of GPT-2 small, and each process has the whole model.  fsdp: a model of 1.3 billion parameters
with activation checkpointing, and each process has a part of the model.  The line of JSON has the times of the slowest
process, and the memory of the GPU that uses most memory.  Its key "devices" has the memory of each GPU.  NVLink
multicast is switched off."""

import json
import os
import sys
import tempfile

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import measured
from torch_model import LENGTH, SIZES, WORDS, Model, loss_of

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
PROGRAMS = {"ddp": "small", "fsdp": "1.3b"}  # each program with the size of its model
MEMORY = "reserved_peak_mib", "allocated_peak_mib", "device_peak_mib", "device_before_mib"


def replicated(options, rank):
    model = Model(options.size).to(options.device)
    return nn.parallel.DistributedDataParallel(model, device_ids=[rank] if options.measured.is_gpu else None)


def sharded(options, rank):
    """Returns the model of this process for fsdp, without ever having the whole model in one process."""
    with torch.device("meta"):
        model = Model(options.size)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = distributed.init_device_mesh(options.device, (distributed.get_world_size(),))
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(checkpoint_wrapper(block), mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=options.device)
    torch.manual_seed(rank)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            own = parameter.to_local()
            if parameter.dim() > 1:
                own.normal_(std=0.02)
            else:
                own.fill_(1 if "norm" in name and name.endswith("weight") else 0)
    return model


def together(rows, losses):
    """Combines the results of all processes into one."""
    slowest = max(rows, key=lambda row: row["steady_sum_ms"])
    largest = max(rows, key=lambda row: row["device_peak_mib"] - row["device_before_mib"])
    return {**slowest, "device_peak_mib": largest["device_peak_mib"],
            "device_before_mib": largest["device_before_mib"],
            **{key: max(row[key] for row in rows) for key in MEMORY[:2] if key in slowest},
            "devices": [{key: row.get(key) for key in MEMORY} for row in rows],
            "result": losses[-1], "losses": losses}


def work(rank, count, meeting, options):
    if options.device != "cpu":
        torch.cuda.set_device(rank)
    measured.begin(options)
    distributed.init_process_group("nccl" if options.measured.is_gpu else "gloo", init_method=f"file://{meeting}",
                                   rank=rank, world_size=count,
                                   device_id=torch.device("cuda", rank) if options.measured.is_gpu else None)
    model = (replicated if options.program == "ddp" else sharded)(options, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(1000 + rank)
    tokens = torch.randint(WORDS, (options.batch, options.length + 1)).to(options.device)
    losses = []

    def step(_):
        loss = loss_of(model, tokens)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    row = measured.figures_of(options.program, step, options, size=options.size, processes=count)
    told = [None] * count
    distributed.all_gather_object(told, (row, losses))
    if rank == 0:
        rows, each = zip(*told)
        print(json.dumps(together(rows, [sum(same) / count for same in zip(*each)])), flush=True)
    distributed.destroy_process_group()


def main():
    options = measured.parsed(__doc__, 24, program=("ddp", "ddp or fsdp"), batch=(8, "sequences of a process"),
                              size=("", f"{', '.join(SIZES)}; default: small for ddp, 1.3b for fsdp"),
                              length=(LENGTH, f"tokens of a sequence, at most {LENGTH}"))
    options.size = options.size or PROGRAMS.get(options.program)
    for name, value, known in (("program", options.program, PROGRAMS), ("size", options.size, SIZES)):
        if value not in known:
            sys.exit(f'parallel.py: there is no {name} "{value}"; there are {", ".join(known)}')
    if not 1 <= options.length <= LENGTH:
        sys.exit(f"parallel.py: --length {options.length} is not from 1 to {LENGTH}")
    if options.compile:
        sys.exit("parallel.py: has no --compile")
    count = 2 if options.device == "cpu" else torch.cuda.device_count()
    if count < 2:
        sys.exit(f"parallel.py: needs two GPUs, and there are {count}")
    for name, value in NO_MULTICAST.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, args=(count, os.path.join(folder, "meeting"), options), nprocs=count)


if __name__ == "__main__":
    main()
