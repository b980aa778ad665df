/* Every backend that the contract test runs against. A new one adds a row, and a function that
 * makes its world. */
#include "config.h"

#include <unistd.h>

#include <glib/gstdio.h>

#include "backends/registry.h"
#include "tests/contract/contract.h"

static oct_world *
make_virtual(GError **error) {
  return oct_backend_world_new("mock", error);
}

static oct_world *
make_real(GError **error) {
  return oct_backend_world_new("mock:clock=real", error);
}

static oct_world *
make_fault(GError **error) {
  return oct_backend_world_new("fault:rate=0@mock", error);
}

static oct_world *
make_fault_real(GError **error) {
  return oct_backend_world_new("fault:rate=0@mock:clock=real", error);
}

static oct_world *
make_remote(GError **error) {
  return oct_backend_world_new("remote@mock:clock=real", error);
}

static char *recording;

static oct_world *
make_record(GError **error) {
  recording = g_strdup_printf("%s/octet-contract-%d.oct", g_get_tmp_dir(), (int)getpid());
  g_autofree char *text = g_strdup_printf("record:file=%s@mock", recording);
  return oct_backend_world_new(text, error);
}

static void
drop_recording(void) {
  if (recording != NULL)
    g_unlink(recording);
  g_clear_pointer(&recording, g_free);
}

#ifdef HAVE_SIMGRID
static oct_world *
make_simgrid(GError **error) {
  return oct_backend_world_new("simgrid:node=b300-hgx8", error);
}

static oct_world *
make_simgrid_exact(GError **error) {
  return oct_backend_world_new("simgrid:node=b300-hgx8,exact=1", error);
}
#endif

const contract_world contract_worlds[] = {
    {.name = "mock", .make = make_virtual, .simulated = TRUE},
    {.name = "mock-real", .make = make_real, .simulated = TRUE},
    {.name = "fault", .make = make_fault, .simulated = TRUE},
    {.name = "fault-real", .make = make_fault_real, .simulated = TRUE},
    {.name = "remote", .make = make_remote, .simulated = TRUE},
    {.name = "record", .make = make_record, .simulated = TRUE, .done = drop_recording},
#ifdef HAVE_SIMGRID
    {.name = "simgrid", .make = make_simgrid, .simulated = TRUE, .own_process = TRUE},
    {.name = "simgrid-exact", .make = make_simgrid_exact, .simulated = TRUE, .own_process = TRUE},
#endif
};

const guint n_contract_worlds = G_N_ELEMENTS(contract_worlds);
