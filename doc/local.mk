# Documentation for people; the manual pages are in man/.
