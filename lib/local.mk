# The library.
#
# lib/libweir-core.la holds the library's code and is never installed: unit tests
# and the weir program link it and see every function.  lib/libweir.la is the same
# code behind the symbol map.

noinst_LTLIBRARIES += lib/libweir-core.la
lib_libweir_core_la_SOURCES = \
	lib/ahead.c \
	lib/ahead.h \
	lib/allocator.c \
	lib/allocator_internal.h \
	lib/anywhere.c \
	lib/arena.h \
	lib/arena_mapped.c \
	lib/arena_regions.c \
	lib/async.c \
	lib/async.h \
	lib/bestfit.c \
	lib/bestfit.h \
	lib/bias.c \
	lib/bias.h \
	lib/books.c \
	lib/books.h \
	lib/budget.c \
	lib/budget.h \
	lib/cell.c \
	lib/cell.h \
	lib/cell_table.c \
	lib/cell_table.h \
	lib/choice.c \
	lib/choice.h \
	lib/chunks.c \
	lib/chunks.h \
	lib/clock.h \
	lib/cuda_abi.h \
	lib/decay.c \
	lib/decay.h \
	lib/driver.c \
	lib/detour.h \
	lib/drop_in.c \
	lib/drop_in.h \
	lib/driver.h \
	lib/driver_count.c \
	lib/driver_cuda.c \
	lib/engine.c \
	lib/engine.h \
	lib/engine_arena.c \
	lib/engine_platform.c \
	lib/engine_pool.c \
	lib/engine_spans.c \
	lib/environment.c \
	lib/front.c \
	lib/front.h \
	lib/growth.c \
	lib/growth.h \
	lib/harden.c \
	lib/harden.h \
	lib/histogram.c \
	lib/histogram.h \
	lib/hostmem.h \
	lib/futex.h \
	lib/kept.c \
	lib/kept.h \
	lib/ledger.c \
	lib/ledger.h \
	lib/import.c \
	lib/learn.c \
	lib/learn.h \
	lib/loans.c \
	lib/loans.h \
	lib/lock.c \
	lib/lock.h \
	lib/log.c \
	lib/log.h \
	lib/map.c \
	lib/map.h \
	lib/model/model.c \
	lib/model/model.h \
	lib/model/model_capture.c \
	lib/model/model_device.c \
	lib/model/model_graph.c \
	lib/model/model_host.c \
	lib/model/model_ipc.c \
	lib/model/model_ipc.h \
	lib/model/model_kernel.c \
	lib/model/model_memory.c \
	lib/model/model_oracle.c \
	lib/model/model_pool.c \
	lib/model/model_profile.c \
	lib/model/model_profile.h \
	lib/model/model_program.c \
	lib/model/model_program.h \
	lib/model/model_sequence.c \
	lib/model/model_shared.c \
	lib/model/model_shared.h \
	lib/model/model_span.c \
	lib/model/model_span.h \
	lib/model/model_state.h \
	lib/model/model_stream.c \
	lib/model/model_tree.c \
	lib/model/model_tree.h \
	lib/model/model_virtual.c \
	lib/nvtx.c \
	lib/nvtx.h \
	lib/nvtx_abi.h \
	lib/options.c \
	lib/pagemap.c \
	lib/pagemap.h \
	lib/neighbours.c \
	lib/neighbours.h \
	lib/nodes.c \
	lib/nodes.h \
	lib/peers.c \
	lib/peers.h \
	lib/order.c \
	lib/order.h \
	lib/placement.c \
	lib/placement.h \
	lib/profile.c \
	lib/profile.h \
	lib/records.c \
	lib/records.h \
	lib/priming.c \
	lib/priming.h \
	lib/process.c \
	lib/process_lock.c \
	lib/process_lock.h \
	lib/recovery.c \
	lib/recovery.h \
	lib/held.c \
	lib/held.h \
	lib/relief.c \
	lib/relief.h \
	lib/replace.c \
	lib/replace.h \
	lib/reserve_state.h \
	lib/result.h \
	lib/settings.h \
	lib/several.c \
	lib/share.c \
	lib/share.h \
	lib/siblings.c \
	lib/siblings.h \
	lib/size.h \
	lib/span.h \
	lib/stats.c \
	lib/status.c \
	lib/suballoc.c \
	lib/suballoc.h \
	lib/tally.c \
	lib/tally.h \
	lib/text.c \
	lib/text.h \
	lib/thread.c \
	lib/thread.h \
	lib/trace.c \
	lib/tls.h \
	lib/unname.c \
	lib/unname.h \
	lib/uses.c \
	lib/uses.h \
	lib/verdict.c \
	lib/verdict.h \
	lib/verdict_text.c \
	lib/who.c \
	lib/who.h
lib_libweir_core_la_LIBADD = $(WEIR_LIBS)

# What processes show of their allocators, and what happened when: for the program and the preload, not for the library.
noinst_LTLIBRARIES += lib/libweir-shown.la
lib_libweir_shown_la_SOURCES = \
	lib/segment.c \
	lib/segment.h \
	lib/show.c \
	lib/show.h \
	lib/timeline.c \
	lib/timeline.h

lib_LTLIBRARIES += lib/libweir.la
lib_libweir_la_SOURCES =
lib_libweir_la_LIBADD = lib/libweir-core.la

# The version of the binary interface, CURRENT:REVISION:AGE.  It is not the
# version of the release.  At each release that changed the library, in this
# order:
#   1. anything changed since the last release:    REVISION + 1
#   2. functions added, removed or changed:        CURRENT + 1, REVISION = 0
#   3. functions only added, none changed:         AGE + 1
#   4. functions removed or changed:               AGE = 0
# New functions also enter lib/libweir.map, in a new node once 1.0 is out.
#
#   release   version-info   why
#   0.1.0     0:0:0          first release
# Its threads, and what it does at the end, may outlast a dlclose.
lib_libweir_la_LDFLAGS = -version-info 0:0:0 -no-undefined -Wl,-z,nodelete
EXTRA_lib_libweir_la_DEPENDENCIES =
if HAVE_VERSION_SCRIPT
lib_libweir_la_LDFLAGS += -Wl,--version-script=$(top_srcdir)/lib/libweir.map
EXTRA_lib_libweir_la_DEPENDENCIES += lib/libweir.map
else
lib_libweir_la_LDFLAGS += -export-symbols-regex '^weir_[a-z0-9]'
endif
EXTRA_DIST += lib/libweir.map

# The profile of the modelled device is compiled in: each line of the text
# becomes a line of a C string.
EXTRA_DIST += lib/model/h200.profile
BUILT_SOURCES += lib/model/h200_profile.h
CLEANFILES += lib/model/h200_profile.h
lib/model/h200_profile.h: lib/model/h200.profile
	$(AM_V_GEN)$(MKDIR_P) lib/model && \
	{ echo '/* Made from h200.profile by the build. */' && \
	  echo 'static const char weir__h200_profile[] =' && \
	  $(SED) -e 's/[\\"]/\\&/g' -e 's/^/    "/' -e 's/$$/\\n"/' $(top_srcdir)/lib/model/h200.profile && \
	  echo '    "";'; } >$@.new && mv $@.new $@
# Also where a program is built alone, without `make all'.
lib/model/model_profile.lo: lib/model/h200_profile.h

# What programs that know nothing of weir are started with (`weir run'): see doc/design.md, Drop-in.  It is
# loaded with the program and never linked to, so it stands beside the libraries, not among them.
if WEIR_PRELOAD
pkglib_LTLIBRARIES += lib/libweir-preload.la
endif
lib_libweir_preload_la_SOURCES = \
	lib/adapters/interpose.c \
	lib/adapters/interpose.h \
	lib/adapters/preload.c \
	lib/adapters/preload.h \
	lib/adapters/pprof.c \
	lib/adapters/pprof.h \
	lib/adapters/both_calls.h \
	lib/adapters/preload_blocks.c \
	lib/adapters/preload_calls.h \
	lib/adapters/preload_heap.c \
	lib/adapters/preload_pools.c \
	lib/adapters/preload_report.c \
	lib/adapters/preload_show.c \
	lib/adapters/preload_trace.c
lib_libweir_preload_la_CPPFLAGS = $(AM_CPPFLAGS) -DWEIR_INTERPOSED='"preload_calls.h"'
lib_libweir_preload_la_LIBADD = lib/libweir-shown.la lib/libweir-core.la
lib_libweir_preload_la_LDFLAGS = -module -avoid-version -shared -no-undefined -Wl,-z,nodelete \
	-Wl,--version-script=$(top_srcdir)/lib/libweir-preload.map
EXTRA_lib_libweir_preload_la_DEPENDENCIES = lib/libweir-preload.map
EXTRA_DIST += lib/libweir-preload.map

# What records a program's requests for `weir record', in the same way of a program.
if WEIR_PRELOAD
pkglib_LTLIBRARIES += lib/libweir-record.la
endif
lib_libweir_record_la_SOURCES = \
	lib/adapters/interpose.c \
	lib/adapters/interpose.h \
	lib/adapters/record.c \
	lib/adapters/record.h \
	lib/adapters/both_calls.h \
	lib/adapters/record_calls.h \
	lib/adapters/record_nvtx.c \
	lib/adapters/record_ring.h
lib_libweir_record_la_CPPFLAGS = $(AM_CPPFLAGS) -DWEIR_INTERPOSED='"record_calls.h"'
lib_libweir_record_la_LIBADD = $(WEIR_LIBS)
lib_libweir_record_la_LDFLAGS = -module -avoid-version -shared -no-undefined \
	-Wl,--version-script=$(top_srcdir)/lib/libweir-record.map
EXTRA_lib_libweir_record_la_DEPENDENCIES = lib/libweir-record.map
EXTRA_DIST += lib/libweir-record.map
