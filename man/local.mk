# The manual pages, and what shells complete.  man/update makes of the program and the headers what they say: man/pages.mk
# is its list.

include man/pages.mk
dist_man_MANS += \
	man/libweir.3 \
	man/weir-settings.7 \
	$(function_pages)
if WEIR_PROGRAM
dist_man_MANS += man/weir.1 man/weir-json.7 $(command_pages)
bashcompletiondir = $(datadir)/bash-completion/completions
zshcompletiondir = $(datadir)/zsh/site-functions
fishcompletiondir = $(datadir)/fish/vendor_completions.d
dist_zshcompletion_DATA = completions/_weir
dist_fishcompletion_DATA = completions/weir.fish
endif
EXTRA_DIST += man/groups man/update completions/weir.bash

# bash wants the name of the command; a function's page is found by each name on it.
install-data-hook:
	$(MKDIR_P) '$(DESTDIR)$(man3dir)'
	for link in $(function_links); do \
	    echo ".so man3/$${link#*:}.3" >"$(DESTDIR)$(man3dir)/$${link%%:*}" || exit 1; \
	done
if WEIR_PROGRAM
	$(MKDIR_P) '$(DESTDIR)$(bashcompletiondir)'
	$(INSTALL_DATA) $(srcdir)/completions/weir.bash '$(DESTDIR)$(bashcompletiondir)/weir'
endif
uninstall-hook:
	for link in $(function_links); do rm -f "$(DESTDIR)$(man3dir)/$${link%%:*}"; done
	find '$(DESTDIR)$(docdir)' '$(DESTDIR)$(weirincludedir)' '$(DESTDIR)$(pkgdatadir)' '$(DESTDIR)$(pkglibdir)' \
	    -depth -type d -empty -delete 2>/dev/null || :
if WEIR_PROGRAM
	rm -f '$(DESTDIR)$(bashcompletiondir)/weir'
endif

# What the program, its option table and the headers say, into the pages: committed, so that no build runs it.
.PHONY: update-manual
update-manual: weir
	$(top_srcdir)/man/update ./weir
