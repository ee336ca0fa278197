# Documentation for people; the manual pages are in man/.  It is installed in the tree's folders, with each file that
# it links to: tests/tree/check-links.

nobase_dist_doc_DATA = \
	COPYING \
	HACKING \
	NEWS \
	PACKAGERS \
	README.md \
	bench/results/bench-h200-2026-11-30.json \
	bench/results/busy-h200-2026-11-30.json \
	bench/results/busy-h200-2026-11-30.txt \
	bench/results/drop-in-h200-2026-11-30.json \
	bench/results/drop-in-h200-2026-11-30.txt \
	bench/results/front-micro-h200-2026-11-30.json \
	bench/results/jax-memory-h200-2026-11-30.txt \
	bench/results/limit-model-2026-11-30.json \
	bench/results/over-time-h200-2026-11-30.txt \
	bench/results/torch-tests-h200-2026-11-28.txt \
	bench/results/torch-h200-2026-11-30.txt \
	bench/results/two-gpus-h200-2026-11-30.txt \
	bench/results/packing-h200-2026-11-30.txt \
	bench/results/rmm-h200-2026-11-30.txt \
	bench/results/several-h200-2026-11-30.txt \
	bench/results/stream-kinds-h200-2026-11-30.txt \
	doc/c.md \
	doc/cumulative.svg \
	doc/cupy.md \
	doc/design.md \
	doc/drop-in.md \
	doc/glossary.md \
	doc/growth.svg \
	doc/jax.md \
	doc/multi-gpu.md \
	doc/out-of-memory.md \
	doc/patterns.md \
	doc/pytorch.md \
	doc/reserved.svg \
	doc/results.md \
	doc/reuse.md \
	doc/sharing.md

# Made from the files in bench/results, and committed; tests/tree/check-figures and check-readme tell when they are out
# of date.
EXTRA_DIST += doc/make-results doc/pictures
.PHONY: update-results update-pictures
update-results:
	$(top_srcdir)/doc/make-results
update-pictures:
	$(top_srcdir)/doc/pictures
