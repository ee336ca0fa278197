# The weir program and the recorded traces it replays.

if WEIR_PROGRAM
endif

# The reference for the contestant driver-keep: make bench/bare_driver
EXTRA_PROGRAMS += bench/bare_driver
bench_bare_driver_LDADD = lib/libweir-core.la

tracesdir = $(pkgdatadir)/traces
dist_traces_DATA =
