/* Small models and configs that the tests of the seam share. Their shapes are made up: small enough
 * to read in a dump, and with every kind of layer group. */
#ifndef OCT_TESTS_FIXTURE_H
#define OCT_TESTS_FIXTURE_H

#include "engine/backend.h"

/* Groups of the hybrid model, in the order of oct_model_groups(). */
enum { FIXTURE_STATE, FIXTURE_PAGES, FIXTURE_WINDOW };

#define FIXTURE_VOCAB    1000
#define FIXTURE_EOS      2
#define FIXTURE_POSITION 4096 /* max_position */
#define FIXTURE_EXPERTS  16

/* 8 layers: state, state, latent pages, window, twice; layer 0 dense, the others 16 experts.
 * Static. */
const oct_model_spec *fixture_hybrid(void);
/* 4 layers of GQA pages, dense. Static. */
const oct_model_spec *fixture_dense(void);

/* 4 layers of latent pages, dense: for decode context parallelism. Static. */
const oct_model_spec *fixture_latent(void);

/* A config for `spec` with `parallel`: blocks of 16 tokens, 32 slots, 64 device and 32 host pages
 * per group, depth 2, tags checked. Device r for rank r. */
oct_instance_config fixture_config(const oct_model_spec *spec, oct_parallel parallel);

#endif
