/* What `octet serve` is asked for: flags with vLLM's names, from the command line and a file. */
#ifndef OCT_CLI_SERVE_OPTIONS_H
#define OCT_CLI_SERVE_OPTIONS_H

#include <glib.h>

#include "cli/engine-flags.h"
#include "engine/base/limits.h"

/* Strings are NULL where not given. */
typedef struct oct_serve_options {
  oct_engine_flags *flags;
  /* the model */
  char *revision, *load_format, *tokenizer, *chat_template, *dtype;
  char *tool_parser, *reasoning_parser, *pooling;
  gboolean skip_tokenizer, auto_tools, batch_invariant, in_process;
  guint64 kv_bytes; /* --kv-cache-memory-bytes; 0: not given */
  char *kv_memory;
  /* where and for whom */
  char *host, *uds, *key_file;
  int port; /* below 0: not given */
  char **keys, **names, **hosts;
  gint64 limits[OCT_LIMIT_COUNT]; /* of HTTP; standard where not given */
  gboolean limits_given[OCT_LIMIT_COUNT];
  /* what is said */
  gboolean log_requests, no_access_log, tokenizer_info, force_usage, metrics;
  gboolean no_op; /* flags that ask for what is always so */
  char *record, *record_steps, *record_routing;
  /* the end */
  char *pace, *config;
  char *file_model; /* of --config */
  int shutdown_s, grace_s;
  int stalled_s; /* without a step from when on health is stalled */
} oct_serve_options;

/* What parsing makes of (argc, argv), argv[0] being "serve": a status to exit with, or
 * OCT_CLI_GO_ON. On other ends than that the options are clear. */
int oct_serve_options_parse(oct_serve_options *options, int argc, char **argv);
void oct_serve_options_clear(oct_serve_options *options);

#endif
