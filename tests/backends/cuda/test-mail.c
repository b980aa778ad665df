/* What stages wait for of each other, and when they need not. Without a GPU: nothing is sent. */
#include <string.h>

#include "backends/cuda/stepper-internal.h"
#include "tests/contract/fixture.h"

#define STAGES 3
#define RING   2

typedef struct party {
  oct_cuda_group group;
  oct_cuda_mail *mail;
  oct_cuda_stepper steppers[STAGES];
} party;

static void
party_open(party *p, oct_instance_config *config, const oct_cuda_options *options) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.pipeline = STAGES;
  memset(p, 0, sizeof *p);
  *config = fixture_config(fixture_dense(), parallel);
  oct_cuda_group_init(&p->group, config, options, STAGES);
  p->mail = oct_cuda_mail_new(&p->group, RING);
  for (guint32 i = 0; i < STAGES; i++)
    p->steppers[i].rank = (oct_cuda_rank){
        .group = &p->group, .index = i, .stage = i, .is_first = i == 0, .is_last = i + 1 == STAGES};
}

static void
party_close(party *p) {
  oct_cuda_mail_free(p->mail);
  oct_cuda_group_clear(&p->group);
}

typedef struct reader {
  party *p;
  guint32 stage;
  gboolean there; /* what it waited for */
} reader;

static void *
wait_for_tokens(void *data) {
  reader *r = data;
  r->there = oct_cuda_mail_tokens(r->p->mail, &r->p->steppers[r->stage], 1, 0) != NULL;
  return NULL;
}

/* Whoever waits before, and whoever comes after. */
static void
nobody_waits_for_a_stage_that_has_left(void) {
  party p;
  oct_instance_config config;
  const oct_cuda_options options = {.deadline_ns = 1};
  pthread_t threads[STAGES - 1];
  reader readers[STAGES - 1];
  party_open(&p, &config, &options);
  for (guint32 i = 0; i + 1 < STAGES; i++) {
    readers[i] = (reader){&p, i, TRUE};
    g_assert_cmpint(pthread_create(&threads[i], NULL, wait_for_tokens, &readers[i]), ==, 0);
  }
  oct_cuda_mail_leave(p.mail, &p.steppers[STAGES - 1]);
  for (guint32 i = 0; i + 1 < STAGES; i++) {
    pthread_join(threads[i], NULL);
    g_assert_false(readers[i].there);
  }
  g_assert_null(oct_cuda_mail_tokens(p.mail, &p.steppers[0], 1, 0));
  oct_cuda_mail_leave(p.mail, &p.steppers[0]);
  g_assert_false(oct_cuda_group_is_broken(&p.group)); /* an end is no failure */
  party_close(&p);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/mail/nobody-waits-for-a-stage-that-has-left",
                  nobody_waits_for_a_stage_that_has_left);
  return g_test_run();
}
