# Programs that show how the library is used.  They are built with all else, so that they stay true, run by
# tests/check-examples on the device model, and installed as sources.

examplesdir = $(docdir)/examples
dist_examples_DATA = examples/growth_callback.c
noinst_PROGRAMS += examples/growth_callback
examples_growth_callback_LDADD = lib/libweir.la $(WEIR_LIBS)
