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
	doc/glossary.md \
	doc/jax.md \
	doc/multi-gpu.md \
	doc/out-of-memory.md \
	doc/pytorch.md \
	doc/reserved.svg \
	doc/results.md \
	doc/settings.md \
	doc/sharing.md

# Made from the files in bench/results, and committed, so that no build needs gnuplot; tests/tree/check-figures and
# check-readme tell when they are out of date.
EXTRA_DIST += doc/make-results doc/pictures
.PHONY: update-results update-pictures
update-results:
	$(top_srcdir)/doc/make-results
update-pictures:
	$(SHELL) $(top_srcdir)/doc/pictures
