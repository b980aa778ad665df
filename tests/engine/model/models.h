/* What the tests of engine/model share: models of the zoo and the small configs in configs/. */
#ifndef OCT_TESTS_MODELS_H
#define OCT_TESTS_MODELS_H

#include <jansson.h>

#include "engine/model/spec.h"

/* All owned by the caller; a model that does not load fails the test. */
oct_model_spec *load_zoo(const char *name);
oct_model_spec *load_small(const char *name);
/* The zoo's config of `name` as JSON, to be changed and parsed. */
json_t *zoo_json(const char *name);
/* Parses `json`, labelled "test". NULL with *error when it is refused. */
oct_model_spec *parse_json(const json_t *json, GError **error);
/* Fails the test unless `json` is refused with an error of `code` whose message has `part`. */
void expect_refused(const json_t *json, int code, const char *part);

#endif
