# h200.profile - one NVIDIA H200 as the device model plays it.
#
# `key = value`.  A value is a word, a number, or a curve: points `x:y`, joined by straight lines; the last line goes on
# behind the last point.  Unless a comment says otherwise, figures were measured on 2026-11-20 on one H200, driver
# 580.159.04 (CUDA 13.0), 16 host cores, as medians or means of 5,000 to 200,000 calls of one thread.

# ---- The device ----

name = NVIDIA H200
driver_version = 13000
devices = 1
# Devices 0 to peers - 1 reach each other's memory, so do the next as many, and no others: eight by NVLink.
peers = 8
# 143,156 MiB, as cuDeviceTotalMem and cuMemGetInfo say.
capacity = 150109880320
# total less free, just after the context was made
context_bytes = 552402944
# The first stream that a program creates gets id 16; those before it are the context's own.
first_stream_id = 15

# ---- Memory ----

# Pools grow and shrink by this, and only wholly free units move: measured.
unit_bytes = 33554432
# Spacing of blocks of 1 to 1,048,577 bytes in a pool.
block_align = 512
# cuMemAlloc takes physical memory in pages of this; blocks up to small_bytes share pages (assumed).
page_bytes = 2097152
small_bytes = 1048576
# 1 if the device maps physical memory by handles (attributes 102 and 110).  page_bytes is the granularity.
virtual_memory = 1
# Address space of a pool, in capacities of its device (assumed; holes are reused, best fit).
room_factor = 4

# ---- Pools, ns ----

# One warm pair of allocation and free, by live blocks: 64 KiB pairs, then random free+alloc of 4 to 36 KiB.
pool_pair_ns = 1:590 100:1298 1000:1526 10000:2300 100000:3392
# How much of it is the allocation's (assumed).
pool_alloc_percent = 50
# One request that grows an empty pool, by units of 32 MiB; the last point: 105 GiB in a fresh process (174 to 208 ms).
pool_grow_ns = 0:0 1:50000 2:69000 8:235000 32:876000 128:3900000 512:15000000 3360:190000000
# Added to the first growth in a process: the first request of a pool took 6.5 to 12.7 ms, 7.7 in the median of 230
# processes that replayed five traces (2026-11-21), and later ones never.
pool_first_ns = 7600000
# Free units moved to where a request needs them: four holes of 512 MiB served 2 GiB in 2.1 ms.
pool_move_ns = 0:0 1:33000 64:2100000
# Trim to 0, by units given back.
pool_trim_ns = 0:0 1:40000 2:73000 8:268000 32:1140000 128:4780000 512:20500000
# A request that cannot be met, by units that the device has free: 200 GiB asked took 159 ms.
pool_refuse_ns = 0:1000 4457:159000000
pool_create_ns = 20000
pool_destroy_ns = 20000
# To give another device access to a pool, or to take it, for each unit that the pool has (not measured yet).
pool_peer_unit_ns = 21000

# ---- cuMemAlloc and cuMemFree, ns, by KiB ----

# Pairs of 512 B, 64 KiB, 1, 16 and 256 MiB (59,413 57,052 60,243 64,528 168,480), then calls of 64 MiB to 16 GiB.
mem_alloc_ns = 0:33000 1024:33000 16384:36000 32768:50000 262144:75000 1048576:107000 4194304:250000 16777216:740000
mem_free_ns = 0:26000 1024:27000 16384:28500 32768:40000 65536:63000 262144:110000 1048576:316000 4194304:1350000 16777216:5070000
# A small block in a page that stands: fitted to a replay of llama-decode (178 ms an iteration).
small_alloc_ns = 2200
small_free_ns = 2200

# cuMemAllocHost of 64 KiB: the wait in cuMemFreeHost was 0.2 to 0.8 ms shorter than a kernel of 45 ms that was launched
# before it.  For other sizes the figure is assumed.
cuMemAllocHost = 250000

# ---- Memory by handles, ns, beside the calls' own cost ----

# H200, driver 580.159.04, 2026-11-21, call by call, 64 handles of up to 64 MiB, 8 of up to 512 MiB, else 2:
#   MiB       2 to 64    256    512   1,024   2,048   4,096
#   create    9 to 15     13     22      31      36      79   us
#   access   21 to 24     32     45      57      80     131
#   unmap    14 to 16     18     21      27      34      52
#   release  13 to 36    102    187     326     658   1,196
# An access over a range of handles costs as much for each; 0.1 us each with the access already; a map 0.8 us for any
# size.  No call waits for work on streams.
# Added for the first handle in a process: by least squares over 15 replays (five traces, three packings, 2026-11-21);
# 400 us by single calls of three processes the next day.
virtual_first_ns = 340000
virtual_create_gib_ns = 16000
virtual_access_handle_ns = 21000
virtual_access_gib_ns = 29000
# The same access for another device (not measured yet: as for the memory's own).
virtual_peer_handle_ns = 21000
virtual_peer_gib_ns = 29000
virtual_unmap_handle_ns = 14500
virtual_unmap_gib_ns = 10000
# Where the memory goes: at the release, or at the last unmap behind it.
virtual_release_gib_ns = 300000

# ---- Work on streams ----

# Data sheet, not measured: HBM3e 4.8 TB/s, PCIe 5.0 x16 64 GB/s.
memset_bytes_per_us = 4800000
copy_bytes_per_us = 64000
# The least time from a launch to the begin of its work, in which blocks freed before do not count as completed.  Fitted
# to 25,038 requests of two streams with work, on a host that paused 15 us after each free: with 1.5 to 3.5 us all
# placements agree with an H200 (driver 580.159.04, 2026-11-27), with 0 and 4 us they do not.
work_begin_ns = 2500

# ---- Graphs, ns a step, beside the calls' own cost ----

# Assumed: the host's time for a captured operation, and for each step at instantiation and at launch.
capture_step_ns = 500
instantiate_step_ns = 1000
launch_step_ns = 50

# ---- Fixed cost of each call, ns ----

cuStreamIsCapturing = 16
cuStreamGetId = 20
cuCtxGetCurrent = 9
cuMemPoolGetAttribute = 34
cuEventRecord = 200
cuEventQuery = 150
cuStreamQuery = 274
cuStreamWaitEvent = 180
cuMemGetInfo = 3966
cuLaunchKernel = 3209
cuMemAddressReserve = 2000
# 11 us alone; the rest is what a handle takes more in the midst of a program, by the same fit.
cuMemCreate = 20000
cuMemMap = 800
cuMemSetAccess = 300
cuMemUnmap = 300
cuMemRelease = 14000
# Assumed, after calls of their kind.
cuInit = 1000000
cuDriverGetVersion = 10
cuDeviceGetCount = 10
cuDeviceGet = 10
cuDeviceGetName = 100
cuDeviceGetUuid = 100
cuDeviceTotalMem = 100
cuDeviceGetAttribute = 20
cuDevicePrimaryCtxRetain = 1000
cuCtxGetDevice = 10
cuStreamGetCtx = 20
cuStreamGetFlags = 20
cuDevicePrimaryCtxRelease = 1000
cuCtxPushCurrent = 15
cuCtxPopCurrent = 15
cuCtxSynchronize = 2000
cuMemGetAddressRange = 100
cuLaunchHostFunc = 3000
cuMemFreeHost = 30000
cuMemPoolTrimTo = 300
cuMemPoolSetAttribute = 34
cuMemPoolSetAccess = 300
cuMemPoolGetAccess = 34
cuDeviceCanAccessPeer = 100
cuStreamCreate = 10000
cuStreamDestroy = 5000
cuStreamSynchronize = 1000
cuThreadExchangeStreamCaptureMode = 10
cuEventCreate = 400
cuEventDestroy = 200
cuMemsetD8Async = 2500
cuMemcpyHtoDAsync = 3000
cuMemcpyDtoHAsync = 3000
cuStreamBeginCapture = 1000
cuStreamEndCapture = 2000
cuGraphInstantiateWithFlags = 20000
cuGraphLaunch = 3500
cuGraphExecDestroy = 2000
cuGraphDestroy = 1000
cuDeviceGraphMemTrim = 40000
cuDeviceGetGraphMemAttribute = 1000
cuGetErrorName = 10
cuMemGetAllocationGranularity = 100
cuMemAddressFree = 2000
cuModuleLoadData = 100000
cuModuleUnload = 10000
cuModuleGetFunction = 200
cuEventElapsedTime = 200
