/* Every backend that the contract test runs against: a new one adds a row. */
#include "config.h"

#include <unistd.h>

#include <glib/gstdio.h>

#include "backends/registry.h"
#include "tests/contract/contract.h"

/* Copies take long enough for the next call to find them in flight, though another process runs in
 * between. */
#define REAL "mock:clock=real,copy_page_ns=50000000"

const contract_world contract_worlds[] = {
    {"mock", "", "mock", TRUE, FALSE, FALSE},
    {"mock-real", "", REAL, TRUE, FALSE, FALSE},
    {"fault", "fault:rate=0@", "mock", TRUE, FALSE, FALSE},
    {"fault-real", "fault:rate=0@", REAL, TRUE, FALSE, FALSE},
    {"pace", "pace@", "mock:copy_page_ns=50000000", TRUE, FALSE, FALSE},
    {"remote", "remote@", REAL, TRUE, FALSE, FALSE},
    {"record", "record:file=FILE@", "mock", TRUE, FALSE, FALSE},
    {"cpu", "", "cpu:threads=2", FALSE, FALSE, FALSE},
    {"cpu-virtual", "", "cpu:threads=1,clock=virtual", FALSE, FALSE, FALSE},
    {"remote-cpu", "remote@", "cpu:threads=1", FALSE, FALSE, FALSE},
    /* The first: a process that has used a GPU cannot start another that does. */
    {"remote-cuda", "remote@", "cuda:devices=6", FALSE, FALSE, TRUE},
    {"cuda", "", "cuda:devices=6", FALSE, FALSE, TRUE},
    {"cuda-float32", "", "cuda:devices=6,dtype=float32", FALSE, FALSE, TRUE},
#ifdef HAVE_SIMGRID
    {"simgrid", "", "simgrid:node=b300-hgx8", TRUE, TRUE, FALSE},
    {"simgrid-exact", "", "simgrid:node=b300-hgx8,exact=1", TRUE, TRUE, FALSE},
#endif
};

const guint n_contract_worlds = G_N_ELEMENTS(contract_worlds);

static char *file; /* of the case that runs */

oct_world *
contract_world_new(const contract_world *world, const char *script, GError **error) {
  g_autofree char *fault =
      script == NULL ? g_strdup("") : g_strdup_printf("fault:delay_ns=300000,script=%s@", script);
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_append_printf(text, "%s%s%s", world->outer, fault, world->inner);
  file = g_strdup_printf("%s/octet-contract-%d.oct", g_get_tmp_dir(), (int)getpid());
  g_string_replace(text, "FILE", file, 0);
  return oct_backend_world_new(text->str, error);
}

void
contract_world_done(void) {
  g_unlink(file);
  g_clear_pointer(&file, g_free);
}
