# h200.profile: the sizes and times of one NVIDIA H200, for the device model.
#
# Each line is `key = value`.  A value is a word, a number, or a curve.  A curve is a list of points `x:y` that are
# joined by straight lines; the last line continues behind the last point.  Unless a comment says otherwise, the figures
# were measured on 2026-11-20 on one H200, driver 580.159.04 (CUDA 13.0), with 16 host cores.  They are medians or means
# of 5,000 to 200,000 calls of one thread.

# ---- The device ----

name = NVIDIA H200
driver_version = 13000
devices = 1
# Devices form groups of this size: devices 0 to peers - 1 are the first group.  The devices of a group can access each
# other's memory, and devices of two groups cannot.  NVLink joins eight devices.
peers = 8
# The total memory in bytes (143,156 MiB), as cuDeviceTotalMem and cuMemGetInfo return it.
capacity = 150109880320
# The memory of a context: the total memory minus the free memory, directly after a context was made.
context_bytes = 552402944
# The first stream that a program creates gets the id 16.  The streams with lower ids belong to the context.
first_stream_id = 15

# ---- Memory ----

# The unit by which pools grow and shrink.  The memory of a unit moves only if the whole unit is free (measured).
unit_bytes = 33554432
# The alignment of blocks in a pool, measured with blocks of 1 to 1,048,577 bytes.
block_align = 512
# cuMemAlloc allocates physical memory in pages of page_bytes.  Blocks of up to small_bytes share pages (assumed).
page_bytes = 2097152
small_bytes = 1048576
# 1 if the device supports mappings of physical allocations (attributes 102 and 110).  Their granularity is page_bytes.
virtual_memory = 1
# The address space of a pool is this number times the capacity of its device (assumed).
room_factor = 4

# ---- Pools, ns ----

# The time of one allocation and one free in a warm pool, by the number of live blocks.  The first point was measured
# with blocks of 64 KiB, all other points with random blocks of 4 to 36 KiB.
pool_pair_ns = 1:590 100:1298 1000:1526 10000:2300 100000:3392
# The part of this time that the allocation takes (assumed).
pool_alloc_percent = 50
# The time of one request that grows an empty pool, by the number of added units of 32 MiB.  The last point is 105 GiB
# in a new process (174 to 208 ms).
pool_grow_ns = 0:0 1:50000 2:69000 8:235000 32:876000 128:3900000 512:15000000 3360:190000000
# The extra time of the first growth in a process.  The first request of a process took 6.5 to 12.7 ms, with a median of
# 7.7 ms over 230 processes that replayed five traces (2026-11-21).  Later requests never took this extra time.
pool_first_ns = 7600000
# The time to move free units to the address that a request needs, by the number of units.  A request for 2 GiB that
# moved four free ranges of 512 MiB took 2.1 ms.
pool_move_ns = 0:0 1:33000 64:2100000
# The time of a trim to 0, by the number of units that return to the device.
pool_trim_ns = 0:0 1:40000 2:73000 8:268000 32:1140000 128:4780000 512:20500000
# The time of a request that fails for lack of memory, by the number of free units of the device.  A request for 200 GiB
# took 159 ms.
pool_refuse_ns = 0:1000 4457:159000000
pool_create_ns = 20000
pool_destroy_ns = 20000
# The time to add or remove the access of another device to a pool, for each unit of the pool (not measured yet).
pool_peer_unit_ns = 21000

# ---- cuMemAlloc and cuMemFree, ns, by KiB ----

# Measured with pairs of 512 B, 64 KiB, 1, 16 and 256 MiB (59,413, 57,052, 60,243, 64,528 and 168,480 ns), and with
# single calls of 64 MiB to 16 GiB.
mem_alloc_ns = 0:33000 1024:33000 16384:36000 32768:50000 262144:75000 1048576:107000 4194304:250000 16777216:740000
mem_free_ns = 0:26000 1024:27000 16384:28500 32768:40000 65536:63000 262144:110000 1048576:316000 4194304:1350000 16777216:5070000
# The times for a small block in an existing page, fitted to a replay of llama-decode (178 ms for each iteration).
small_alloc_ns = 2200
small_free_ns = 2200

# Measured with 64 KiB, and assumed for other sizes.  A kernel of 45 ms was launched before cuMemAllocHost, and
# cuMemFreeHost then waited for 0.2 to 0.8 ms less than 45 ms.
cuMemAllocHost = 250000

# ---- Physical allocations, ns, in addition to the fixed cost of each call ----

# Measured on an H200 (driver 580.159.04, 2026-11-21), each call alone: 64 allocations of each size up to 64 MiB, 8 of
# each size up to 512 MiB, 2 of each larger size.
#   MiB       2 to 64    256    512   1,024   2,048   4,096
#   create    9 to 15     13     22      31      36      79   us
#   access   21 to 24     32     45      57      80     131
#   unmap    14 to 16     18     21      27      34      52
#   release  13 to 36    102    187     326     658   1,196
# One cuMemSetAccess for a range of several allocations takes this time for each allocation, or 0.1 us for an allocation
# that has the access already.  A cuMemMap takes 0.8 us for any size.  No call waits for work on streams.
# The extra time of the first physical allocation in a process, by least squares over 15 replays (five traces, three
# placements, 2026-11-21).  On the next day, single calls in three processes gave 400 us.
virtual_first_ns = 340000
virtual_create_gib_ns = 16000
virtual_access_handle_ns = 21000
virtual_access_gib_ns = 29000
# The times to set the access of another device (not measured yet; equal to the times for the device of the memory).
virtual_peer_handle_ns = 21000
virtual_peer_gib_ns = 29000
virtual_unmap_handle_ns = 14500
virtual_unmap_gib_ns = 10000
# The time to free the memory, either at the release or, if mappings still exist then, at the last unmap.
virtual_release_gib_ns = 300000

# ---- Work on streams ----

# From the data sheet, not measured: 4.8 TB/s for HBM3e, 64 GB/s for PCIe 5.0 x16.
memset_bytes_per_us = 4800000
copy_bytes_per_us = 64000
# The least time from a launch to the begin of its work.  During this time, blocks that were freed before the launch do
# not count as completed.  The figure was fitted to 25,038 requests of two streams with GPU work, on a host that paused
# 15 us after each free.  With 1.5 to 3.5 us, all placements agree with an H200 (driver 580.159.04, 2026-11-27); with 0
# and 4 us, they do not.
work_begin_ns = 2500

# ---- Graphs, ns for each step, in addition to the fixed cost of each call ----

# Assumed: the time of the host for a captured operation, and for each step of an instantiation and of a launch.
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
# A single cuMemCreate takes 11 us.  Within a program it takes 9 us more, by the least-squares fit above.
cuMemCreate = 20000
cuMemMap = 800
cuMemSetAccess = 300
cuMemUnmap = 300
cuMemRelease = 14000
# The figures below are assumed, from the measured figures of similar calls.
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
