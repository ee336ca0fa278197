# Benchmarks that are not part of the weir program, and the recorded traces that the program replays.
EXTRA_DIST += bench/README bench/drop-in/README bench/rmm/README bench/torch/README

if WEIR_PROGRAM
bench: weir
	./weir bench $(BENCHFLAGS)
endif

# `make check' measures nothing.  To measure, run make bench BENCHFLAGS='--repeat 3'.
.PHONY: bench

# `make bench-programs' builds all benchmarks, `make NAME' builds one.  The first lines of a benchmark, or its --help,
# say what it measures.  The tests in tests/bench also build the first two benchmarks.
bench_programs = bench/measure bench/micro
developer_programs += $(bench_programs) bench/bare_driver bench/bare_growth bench/group_cost bench/phases bench/two_builds
bench_common = bench/common.c bench/common.h
bench_stopwatch = cli/common/span.c cli/common/span.h
bench_measure_SOURCES = bench/measure.c bench/measure.h bench/measure_calls.c $(bench_common) $(bench_stopwatch)
bench_measure_LDADD = lib/libweir-core.la -lm
bench_micro_SOURCES = bench/micro.c $(bench_common) $(bench_stopwatch)
bench_micro_LDADD = lib/libweir-core.la
bench_bare_driver_SOURCES = bench/bare_driver.c $(bench_common)
bench_bare_driver_LDADD = lib/libweir-core.la
bench_bare_growth_SOURCES = bench/bare_growth.c $(bench_common)
bench_bare_growth_LDADD = lib/libweir-core.la
bench_group_cost_LDADD = lib/libweir-core.la
bench_phases_LDADD = lib/libweir-core.la
bench_two_builds_SOURCES = bench/two_builds.c $(bench_common)
bench_two_builds_LDADD = lib/libweir-core.la -lm
if WEIR_PROGRAM
developer_programs += bench/bare_placement
endif
bench_bare_placement_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
bench_bare_placement_LDADD = lib/libweir-core.la $(JANSSON_LIBS) -lm

# This script measures several processes on one device, with and without the shared registry.
EXTRA_DIST += bench/processes

# This script changes the sizes in a trace.
EXTRA_DIST += bench/vary-sizes

# This script makes traces of invented programs.
EXTRA_DIST += bench/loads

# These scripts compare two builds on a GPU, and find the smallest limit of each configuration on the device model.
EXTRA_DIST += bench/core-figures bench/smallest-limit

# This script measures how good the settings of weir tune are for a run that weir tune has not seen.
EXTRA_DIST += bench/tune-regret

# These scripts measure calls and requests under weir run, on a machine with a GPU and nvcc.
EXTRA_DIST += bench/seen-calls bench/seen_calls.c bench/stream-kinds bench/stream_kinds.cu bench/at_once.c

# This program runs RMM's benchmark of random allocations, on a machine with a GPU and nvcc.
EXTRA_DIST += bench/rmm/random_allocations.cpp bench/rmm/run

# tests/gpu/drop-in, tests/gpu/several and tests/gpu/record-overhead run these programs on a machine with a GPU.
EXTRA_DIST += \
	bench/record-cost \
	bench/record-jax \
	bench/drop-in/common.py \
	bench/drop-in/cupy_allocs.py \
	bench/drop-in/cupy_arrays.py \
	bench/drop-in/cupy_common.py \
	bench/drop-in/cupy_counted.py \
	bench/drop-in/jax_chain.py \
	bench/drop-in/jax_common.py \
	bench/drop-in/jax_room.py \
	bench/drop-in/jax_sharded.py \
	bench/drop-in/jax_train.py \
	bench/drop-in/over-time \
	bench/drop-in/torch_common.py \
	bench/drop-in/torch_counted.py \
	bench/drop-in/torch_distributed.py \
	bench/drop-in/torch_gpt2.py \
	bench/drop-in/torch_idle.py \
	bench/drop-in/torch_model.py \
	bench/drop-in/torch_streams.py

# These files compare PyTorch programs with PyTorch's allocator and with weir's, on a machine with a GPU.
EXTRA_DIST += \
	bench/torch/bert.py \
	bench/torch/compare \
	bench/torch/detect.py \
	bench/torch/diffuse.py \
	bench/torch/gpt2.py \
	bench/torch/graph.py \
	bench/torch/llama.py \
	bench/torch/lora.py \
	bench/torch/measured.py \
	bench/torch/moe.py \
	bench/torch/pair.cpp \
	bench/torch/pair.py \
	bench/torch/parallel.py \
	bench/torch/resnet.py \
	bench/torch/segment.py \
	bench/torch/t5.py \
	bench/torch/vit.py

tracesdir = $(pkgdatadir)/traces
dist_traces_DATA = \
	bench/traces/README \
	bench/traces/gat-dynamic.trace.zst \
	bench/traces/gpt2-dynamic.trace.zst \
	bench/traces/gpt2-train.trace.zst \
	bench/traces/multistream-infer.trace.zst \
	bench/traces/resnet50-train.trace.zst

# This link exists only in a build outside the source tree: see configure.ac.
distclean-local:
	test ! -h bench/traces || rm -f bench/traces
