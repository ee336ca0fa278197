# Documentation for people; the manual pages are in man/.

dist_doc_DATA = \
	NEWS \
	README.md \
	doc/benchmark.svg \
	doc/benchmarking.md \
	doc/c.md \
	doc/cupy.md \
	doc/design.md \
	doc/drop-in.md \
	doc/growth.md \
	doc/internals.md \
	doc/jax-memory.md \
	doc/jax.md \
	doc/policy.md \
	doc/pytorch.md \
	doc/multi-gpu.md \
	doc/one-gpu.md \
	doc/reserved.svg \
	doc/results.md

# Of the figures in bench/results; the pictures are committed, so that no build needs gnuplot.
EXTRA_DIST += doc/pictures
.PHONY: update-pictures
update-pictures:
	$(SHELL) $(top_srcdir)/doc/pictures
