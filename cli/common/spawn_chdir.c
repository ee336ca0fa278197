/* SPDX-License-Identifier: MIT */
/* spawn_chdir.c: posix_spawn_file_actions_addchdir_np, for a build with a glibc before 2.29.
 *
 * Such a build mostly runs with a newer glibc, whose function it then calls.  Without one there is no such action, and the
 * caller gets ENOSYS.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>

#ifndef HAVE_POSIX_SPAWN_FILE_ACTIONS_ADDCHDIR_NP
int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *path) {
    int (*add)(posix_spawn_file_actions_t * actions, const char *path) = NULL;

    *(void **)&add = dlsym(RTLD_NEXT, "posix_spawn_file_actions_addchdir_np");
    return add ? add(actions, path) : ENOSYS;
}
#else
/* A file has a declaration. */
typedef int spawn_chdir_is_there;
#endif
