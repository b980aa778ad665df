#include "config.h"

#include "backends/cuda/numa.h"

#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MPOL_PREFERRED 1
#define NODES_MAX      1024

static char *
read_line(const char *path) {
  char *text = NULL;
  return g_file_get_contents(path, &text, NULL, NULL) ? g_strstrip(text) : NULL;
}

gint
oct_numa_node_of(const char *bus_id) {
  g_autofree char *lower = g_ascii_strdown(bus_id, -1);
  g_autofree char *path = g_strdup_printf("/sys/bus/pci/devices/%s/numa_node", lower);
  g_autofree char *text = read_line(path);
  gint64 node;
  return text != NULL && g_ascii_string_to_signed(text, 10, 0, NODES_MAX - 1, &node, NULL)
             ? (gint)node
             : -1;
}

/* "0-31,128-159" into a set; FALSE when it is empty. */
static gboolean
parse_processors(const char *text, cpu_set_t *set) {
  CPU_ZERO(set);
  g_auto(GStrv) runs = g_strsplit(text, ",", -1);
  for (char **run = runs; *run != NULL; run++) {
    char *end = NULL;
    guint64 first = g_ascii_strtoull(*run, &end, 10), last = first;
    if (end == *run)
      continue;
    if (*end == '-')
      last = g_ascii_strtoull(end + 1, NULL, 10);
    for (guint64 i = first; i <= last && i < CPU_SETSIZE; i++)
      CPU_SET((int)i, set);
  }
  return CPU_COUNT(set) > 0;
}

gboolean
oct_numa_bind(gint node) {
  if (node < 0 || node >= NODES_MAX)
    return FALSE;
  g_autofree char *path = g_strdup_printf("/sys/devices/system/node/node%d/cpulist", node);
  g_autofree char *text = read_line(path);
  cpu_set_t set;
  if (text == NULL || !parse_processors(text, &set) || sched_setaffinity(0, sizeof set, &set) != 0)
    return FALSE;
  unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))];
  memset(mask, 0, sizeof mask);
  mask[(guint)node / (8 * sizeof *mask)] = 1ul << ((guint)node % (8 * sizeof *mask));
  return syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX) == 0;
}
