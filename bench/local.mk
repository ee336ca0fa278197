# The weir program and the recorded traces it replays.

if WEIR_PROGRAM
bin_PROGRAMS += weir
weir_SOURCES = \
	bench/bench.c \
	bench/busy.c \
	bench/busy.h \
	bench/changepoints.c \
	bench/changepoints.h \
	bench/command.c \
	bench/command.h \
	bench/commands.h \
	bench/contest.c \
	bench/contest.h \
	bench/contestant.c \
	bench/contestant.h \
	bench/contestant_raw.c \
	bench/contestant_weir.c \
	bench/convert.c \
	bench/convert.h \
	bench/convert_minimalloc.c \
	bench/convert_rmm.c \
	bench/explain.c \
	bench/explain.h \
	bench/explain_show.c \
	bench/flags.c \
	bench/flags.h \
	bench/frameworks.c \
	bench/frameworks.h \
	bench/help.c \
	bench/help.h \
	bench/holders.c \
	bench/holders.h \
	bench/info.c \
	bench/jsonfile.c \
	bench/jsonfile.h \
	bench/limit_sweep.c \
	bench/limit_sweep.h \
	bench/lines.c \
	bench/lines.h \
	bench/measure.c \
	bench/measure.h \
	bench/measure_child.c \
	bench/measure_memory.c \
	bench/measure_pools.c \
	bench/merge.c \
	bench/merge.h \
	bench/micro.c \
	bench/micro.h \
	bench/micro_measure.c \
	bench/micro_questions.c \
	bench/micro_run.c \
	bench/micro_scenarios.c \
	bench/micro_subjects.c \
	bench/micro_table.c \
	bench/modules.c \
	bench/modules.h \
	bench/outputs.c \
	bench/outputs.h \
	bench/preloading.c \
	bench/preloading.h \
	bench/progress.c \
	bench/progress.h \
	bench/record.c \
	bench/replay.c \
	bench/replay_child.c \
	bench/report.c \
	bench/report.h \
	bench/report_html.c \
	bench/report_plot.c \
	bench/run.c \
	bench/runner.c \
	bench/runner.h \
	bench/samples.c \
	bench/samples.h \
	bench/shipped.c \
	bench/shipped.h \
	bench/sink.c \
	bench/sink.h \
	bench/source.c \
	bench/source.h \
	bench/span.c \
	bench/span.h \
	bench/spell.c \
	bench/spell.h \
	bench/stopwatch.c \
	bench/stopwatch.h \
	bench/summary.c \
	bench/summary.h \
	bench/table.c \
	bench/table.h \
	bench/tape.c \
	bench/tape.h \
	bench/top.c \
	bench/top_view.c \
	bench/top_view.h \
	bench/tracing.c \
	bench/tracing.h \
	bench/variables.c \
	bench/variables.h \
	bench/weir.c
weir_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/bench -DWEIR_TRACES_DIR='"$(tracesdir)"' \
	-DWEIR_PKGLIB_DIR='"$(pkglibdir)"' $(WEIR_ZSTD_CPPFLAGS)
weir_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(ZLIB_CFLAGS) $(ZSTD_CFLAGS)
weir_LDADD = lib/libweir-shown.la lib/libweir-core.la $(JANSSON_LIBS) $(ZLIB_LIBS) $(ZSTD_LIBS) -lm

bench: weir
	./weir bench $(BENCHFLAGS)
endif

# Measuring is never part of `make check':  make bench BENCHFLAGS='--repeat 3'
.PHONY: bench

# What is measured beside the program: `make bench-programs', or one by its name.
developer_programs += bench/bare_driver bench/bare_growth bench/phases
bench_bare_driver_LDADD = lib/libweir-core.la
bench_bare_growth_LDADD = lib/libweir-core.la
bench_phases_LDADD = lib/libweir-core.la
if WEIR_PROGRAM
developer_programs += bench/bare_placement
endif
bench_bare_placement_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
bench_bare_placement_LDADD = lib/libweir-core.la $(JANSSON_LIBS) -lm

# Several processes on one device, with and without the ledger.
EXTRA_DIST += bench/processes

# Traces with other sizes.
EXTRA_DIST += bench/vary-sizes

# Programs of frameworks, for a machine with a GPU: tests/gpu/drop-in, several, record-overhead.
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
	bench/drop-in/torch_common.py \
	bench/drop-in/torch_counted.py \
	bench/drop-in/torch_distributed.py \
	bench/drop-in/torch_gpt2.py \
	bench/drop-in/torch_idle.py \
	bench/drop-in/torch_model.py \
	bench/drop-in/torch_streams.py

tracesdir = $(pkgdatadir)/traces
dist_traces_DATA = \
	bench/traces/README \
	bench/traces/gat-dynamic.trace.gz \
	bench/traces/gpt2-dynamic.trace.gz \
	bench/traces/gpt2-train.trace.gz \
	bench/traces/multistream-infer.trace.gz \
	bench/traces/resnet50-train.trace.gz

# Of a build outside the source tree: see configure.ac.
distclean-local:
	test ! -h bench/traces || rm -f bench/traces
