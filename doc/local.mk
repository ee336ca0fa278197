# Documentation for people; the manual pages are in man/.

dist_doc_DATA = \
	NEWS \
	README \
	doc/design.md \
	doc/drop-in.md \
	doc/growth.md \
	doc/jax-memory.md \
	doc/results.md
