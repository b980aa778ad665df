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

/* A node's number, -1 when the text is none. */
static gint
parse_node(const char *text) {
  gint64 node;
  return text != NULL && g_ascii_string_to_signed(text, 10, 0, NODES_MAX - 1, &node, NULL)
             ? (gint)node
             : -1;
}

gint
oct_numa_node_of(const char *bus_id) {
  g_autofree char *lower = g_ascii_strdown(bus_id, -1);
  g_autofree char *path = g_strdup_printf("/sys/bus/pci/devices/%s/numa_node", lower);
  g_autofree char *text = read_line(path);
  g_autofree char *online = read_line("/sys/devices/system/node/online");
  if (text == NULL)
    return -1;
  const gint node = parse_node(text);
  /* A virtual machine often says -1 of a device; of several nodes the list is no number. */
  return node >= 0 ? node : parse_node(online);
}

/* A number at *at, which then is behind it. FALSE: none is there, or one of more than 9 digits. */
static gboolean
take_number(const char **at, guint32 *number) {
  const char *from = *at;
  *number = 0;
  while (g_ascii_isdigit(**at) && *at - from < 9)
    *number = 10 * *number + (guint32)(*(*at)++ - '0');
  return *at > from && !g_ascii_isdigit(**at);
}

guint
oct_numa_processors(const char *text, guint32 *processors, guint most) {
  guint n = 0;
  for (const char *at = text;; at++) {
    guint32 first, last;
    if (!take_number(&at, &first))
      return 0;
    last = first;
    if (*at == '-' && (at++, !take_number(&at, &last)))
      return 0;
    if (last < first || last - first >= most - n || (*at != ',' && *at != '\0'))
      return 0;
    for (guint32 i = first; i <= last; i++)
      processors[n++] = i;
    if (*at == '\0')
      return n;
  }
}

gboolean
oct_numa_bind(gint node) {
  if (node < 0 || node >= NODES_MAX)
    return FALSE;
  g_autofree char *path = g_strdup_printf("/sys/devices/system/node/node%d/cpulist", node);
  g_autofree char *text = read_line(path);
  guint32 processors[CPU_SETSIZE];
  const guint n = text != NULL ? oct_numa_processors(text, processors, CPU_SETSIZE) : 0;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (guint i = 0; i < n; i++)
    CPU_SET(processors[i], &set);
  if (n == 0 || sched_setaffinity(0, sizeof set, &set) != 0)
    return FALSE;
  unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))];
  memset(mask, 0, sizeof mask);
  mask[(guint)node / (8 * sizeof *mask)] = 1ul << ((guint)node % (8 * sizeof *mask));
  return syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX) == 0;
}
