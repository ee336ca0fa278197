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
	doc/growth.md \
	doc/internals.md \
	doc/jax.md \
	doc/policy.md \
	doc/pytorch.md \
	doc/multi-gpu.md \
	doc/sharing.md \
	doc/results.md
