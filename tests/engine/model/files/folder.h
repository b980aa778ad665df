/* Scratch folders of tests. */
#ifndef OCT_TESTS_FOLDER_H
#define OCT_TESTS_FOLDER_H

#include <glib.h>

/* A new empty folder; owned. */
char *folder_new(void);
/* Removes it with the files in it. */
void folder_remove(const char *path);

#endif
