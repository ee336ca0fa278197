/* SPDX-License-Identifier: MIT */
/* own_file.h: a file of the program's under a number that was not its to close. */
#ifndef WEIR_TEST_OWN_FILE_H
#define WEIR_TEST_OWN_FILE_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Longer than each of the library's. */
enum { OWN_FILE_BYTES = 300000 };

/* Takes that number, which is open.  1, or 0 if there can be no such file. */
static inline int own_file_put(int number) {
    char bytes[1000];
    FILE *file = tmpfile();
    int good = file != NULL;

    memset(bytes, 'o', sizeof bytes);
    for (int i = 0; good && i < OWN_FILE_BYTES; i += (int)sizeof bytes)
        good = fwrite(bytes, sizeof bytes, 1, file) == 1;
    good = good && fflush(file) == 0 && dup3(fileno(file), number, O_CLOEXEC) == number;
    if (file)
        fclose(file);
    return good;
}

/* 1: the number is open still, and the file is as it was; closes it. */
static inline int own_file_is_whole(int number) {
    char byte;
    struct stat is;
    int good = fstat(number, &is) == 0 && is.st_size == OWN_FILE_BYTES;

    for (int i = 0; good && i < OWN_FILE_BYTES; i++)
        good = pread(number, &byte, 1, i) == 1 && byte == 'o';
    return close(number) == 0 && good;
}

#endif
