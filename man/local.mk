# The manual pages.
