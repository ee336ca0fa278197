# Documentation for people; the manual pages are in man/.

dist_doc_DATA = \
	NEWS \
	README \
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
	doc/results.md \
	doc/settings.md \
	doc/sharing.md
EXTRA_DIST += doc/make-results

# doc/results.md, from the files in bench/results: committed; tests/tree/check-figures tells when it is out of date.
.PHONY: update-results
update-results:
	$(top_srcdir)/doc/make-results
