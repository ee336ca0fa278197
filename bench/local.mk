# The weir program and the recorded traces it replays.

if WEIR_PROGRAM
endif

tracesdir = $(pkgdatadir)/traces
dist_traces_DATA =
