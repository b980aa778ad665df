/* octet model: the zoo, and what a model takes in memory under a parallel layout. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cmd-model-plan.h"
#include "cli/cmd-model-verify.h"
#include "engine/base/assert.h"
#include "engine/model/spec.h"

/* Options as given; 0 and NULL where not. */
typedef struct options {
  int tensor, pipeline, data, decode_context;
  gboolean expert_parallel, replicate_latent, replicate_shared;
  char *stage_layers, *kv, *json, *zoo;
} options;

/* A model and what the report says about it. */
typedef struct report {
  oct_model_spec *spec; /* owned */
  oct_parallel parallel;
  oct_dtype kv;
  oct_weights weights;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n_groups;
  oct_weights rank[OCT_PARALLEL_STAGES_MAX]; /* of one GPU of each stage */
  guint32 fullest;                           /* stage whose GPUs hold most weight bytes */
} report;

static const char *const attention_names[OCT_ATTENTION_COUNT] = {
    [OCT_ATTENTION_GQA] = "gqa",
    [OCT_ATTENTION_WINDOW] = "window",
    [OCT_ATTENTION_MLA] = "mla",
    [OCT_ATTENTION_KDA] = "kda",
};
static const char *const ffn_names[OCT_FFN_COUNT] = {
    [OCT_FFN_DENSE] = "dense",
    [OCT_FFN_MOE] = "moe",
    [OCT_FFN_LATENT_MOE] = "latent-moe",
};

/* The classes of oct_weights in the order of the report, with the type that each is stored in. */
typedef struct class_row {
  const char *name;
  oct_weight_sum all, rank;
  const char *type;
} class_row;

#define CLASS_ROWS 9

static void
fill_classes(const report *r, class_row rows[CLASS_ROWS]) {
  const oct_weights *a = &r->weights, *b = &r->rank[r->fullest];
  const oct_weight_types *t = &r->spec->types;
  const char *small = oct_dtype_name(t->base);
  for (guint i = 0; i < r->spec->n_attention; i++)
    if (r->spec->attention[i].kind == OCT_ATTENTION_KDA)
      small = "mixed"; /* KDA's vectors are float32 */
  const class_row filled[CLASS_ROWS] = {
      {"attention", a->attention, b->attention, oct_dtype_name(t->attention)},
      {"dense FFN", a->dense_ffn, b->dense_ffn, oct_dtype_name(t->dense_ffn)},
      {"experts", a->experts, b->experts, oct_dtype_name(t->expert)},
      {"shared experts", a->shared_experts, b->shared_experts, oct_dtype_name(t->shared_expert)},
      {"router", a->router, b->router, oct_dtype_name(t->router)},
      {"latent", a->latent, b->latent, oct_dtype_name(t->latent)},
      {"norms, vectors", a->norms, b->norms, small},
      {"embedding", a->embedding, b->embedding, oct_dtype_name(t->embedding)},
      {"head", a->head, b->head, oct_dtype_name(t->head)},
  };
  memcpy(rows, filled, sizeof filled);
}

/* A number with thousands separators, in one of a few buffers used in turn: up to 8 in one printf.
 */
static const char *
grouped(guint64 number) {
  static char buffers[8][32];
  static guint turn;
  char *buffer = buffers[turn++ % G_N_ELEMENTS(buffers)];
  char digits[24];
  int n = g_snprintf(digits, sizeof digits, "%" G_GUINT64_FORMAT, number), out = 0;
  for (int i = 0; i < n; i++) {
    if (i > 0 && (n - i) % 3 == 0)
      buffer[out++] = ',';
    buffer[out++] = digits[i];
  }
  buffer[out] = '\0';
  return buffer;
}

static guint64
rank_bytes(const report *r, guint32 stage) {
  return oct_weights_total(&r->rank[stage]).bytes;
}

/* Cache bytes on a GPU of one stage, over all groups: per token, and per sequence for state. */
static guint64
stage_token_bytes(const report *r, guint32 stage) {
  guint64 bytes = 0;
  for (guint g = 0; g < r->n_groups; g++)
    bytes += oct_model_rank_token_bytes(r->spec, &r->parallel, stage, r->kv, g);
  return bytes;
}

static guint64
stage_state_bytes(const report *r, guint32 stage) {
  guint64 bytes = 0;
  for (guint g = 0; g < r->n_groups; g++)
    bytes += oct_model_rank_state_bytes(r->spec, &r->parallel, stage, g);
  return bytes;
}

/* The most that a GPU of any stage holds of a group. */
static guint64
most_token_bytes(const report *r, guint group) {
  guint64 most = 0;
  for (guint32 stage = 0; stage < r->parallel.pipeline; stage++)
    most = MAX(most, oct_model_rank_token_bytes(r->spec, &r->parallel, stage, r->kv, group));
  return most;
}

static guint64
most_state_bytes(const report *r, guint group) {
  guint64 most = 0;
  for (guint32 stage = 0; stage < r->parallel.pipeline; stage++)
    most = MAX(most, oct_model_rank_state_bytes(r->spec, &r->parallel, stage, group));
  return most;
}

static guint32
ffn_layers(const oct_model_spec *spec, guint ffn) {
  guint32 n = 0;
  for (guint32 layer = 0; layer < spec->n_layers; layer++)
    n += spec->layers[layer].ffn == ffn;
  return n;
}

static oct_weight_sum
first_expert(const oct_model_spec *spec) {
  for (guint32 layer = 0; layer < spec->n_layers; layer++)
    if (spec->ffn[spec->layers[layer].ffn].kind != OCT_FFN_DENSE)
      return oct_model_expert(spec, layer);
  return (oct_weight_sum){0};
}

/* --- for people ----------------------------------------------------------------------------------
 */

static void
print_layers(const report *r) {
  printf("\n%-12s %7s %12s %18s %18s %18s\n", "layer group", "layers", "B/token",
         "state B/sequence", "B/token per GPU", "state per GPU");
  for (guint g = 0; g < r->n_groups; g++) {
    const oct_layer_group *group = &r->groups[g];
    printf("%-12s %7u %12s %18s %18s %18s\n", attention_names[group->kind], group->n_layers,
           grouped(group->token_bytes), grouped(group->state_bytes),
           grouped(most_token_bytes(r, g)), grouped(most_state_bytes(r, g)));
  }
  printf("\n%-12s %7s %8s %6s %8s %8s %8s\n", "FFN", "layers", "experts", "top-k", "width",
         "shared", "latent");
  for (guint i = 0; i < r->spec->n_ffn; i++) {
    const oct_ffn_spec *f = &r->spec->ffn[i];
    printf("%-12s %7u %8u %6u %8u %8u %8u\n", ffn_names[f->kind], ffn_layers(r->spec, i),
           f->n_experts, f->top_k, f->kind == OCT_FFN_DENSE ? f->intermediate : f->moe_intermediate,
           f->shared_intermediate, f->latent);
  }
}

static void
print_stages(const report *r) {
  if (r->parallel.pipeline == 1)
    return;
  printf("\n%-6s %10s %20s %16s %16s\n", "stage", "layers", "weights per GPU", "B/token",
         "state B");
  for (guint32 stage = 0; stage < r->parallel.pipeline; stage++) {
    guint32 first, count;
    oct_parallel_stage(r->spec, &r->parallel, stage, &first, &count);
    g_autofree char *layers = g_strdup_printf("%u-%u", first, first + count - 1);
    printf("%-6u %10s %20s %16s %16s\n", stage, layers, grouped(rank_bytes(r, stage)),
           grouped(stage_token_bytes(r, stage)), grouped(stage_state_bytes(r, stage)));
  }
}

static void
print_report(const report *r) {
  const oct_model_spec *spec = r->spec;
  const oct_parallel *p = &r->parallel;
  oct_weight_sum total = oct_weights_total(&r->weights), expert = first_expert(spec);
  guint64 token_bytes = 0, state_bytes = 0, most = rank_bytes(r, r->fullest);
  class_row rows[CLASS_ROWS];
  for (guint g = 0; g < r->n_groups; g++) {
    token_bytes += r->groups[g].token_bytes;
    state_bytes += r->groups[g].state_bytes;
  }
  printf("%s (%s): %u layers, hidden %u, vocabulary %u, %u positions\n", spec->name,
         spec->architecture, spec->n_layers, spec->hidden, spec->vocab, spec->max_position);
  printf("parameters           %22s  (%.2f billion)\n", grouped(total.parameters),
         (double)total.parameters / 1e9);
  printf("active per token     %22s  (%.2f billion)\n", grouped(oct_model_active_parameters(spec)),
         (double)oct_model_active_parameters(spec) / 1e9);
  printf("weights as stored    %22s B\n", grouped(total.bytes));
  if (expert.bytes > 0)
    printf("one routed expert    %22s B\n", grouped(expert.bytes));
  printf("cache per token      %22s B  (%s)\n", grouped(token_bytes), oct_dtype_name(r->kv));
  printf("state per sequence   %22s B\n", grouped(state_bytes));
  printf("layout               tensor %u x pipeline %u x data %u = %u GPUs%s, decode context %u\n",
         p->tensor, p->pipeline, p->data, oct_parallel_world(p),
         p->expert_parallel ? ", expert parallel" : "", p->decode_context);
  printf("weights per GPU      %22s B  (%.1f GB = %.1f GiB%s)\n", grouped(most), (double)most / 1e9,
         (double)most / (1024.0 * 1024 * 1024), p->pipeline > 1 ? ", fullest stage" : "");

  printf("\n%-15s %20s %20s %18s  %s\n", "weights", "parameters", "bytes", "bytes per GPU",
         "stored as");
  fill_classes(r, rows);
  for (guint i = 0; i < CLASS_ROWS; i++)
    if (rows[i].all.parameters > 0 || rows[i].rank.parameters > 0)
      printf("%-15s %20s %20s %18s  %s\n", rows[i].name, grouped(rows[i].all.parameters),
             grouped(rows[i].all.bytes), grouped(rows[i].rank.bytes), rows[i].type);
  print_layers(r);
  print_stages(r);
}

/* --- for programs --------------------------------------------------------------------------------
 */

static json_t *
number(guint64 value) {
  return json_integer((json_int_t)value);
}

static json_t *
json_classes(const report *r) {
  class_row rows[CLASS_ROWS];
  json_t *classes = json_array();
  fill_classes(r, rows);
  for (guint i = 0; i < CLASS_ROWS; i++)
    json_array_append_new(classes, json_pack("{s:s, s:o, s:o, s:o, s:s}", "class", rows[i].name,
                                             "parameters", number(rows[i].all.parameters), "bytes",
                                             number(rows[i].all.bytes), "bytes_per_gpu",
                                             number(rows[i].rank.bytes), "type", rows[i].type));
  return classes;
}

static json_t *
json_groups(const report *r) {
  json_t *groups = json_array();
  for (guint g = 0; g < r->n_groups; g++)
    json_array_append_new(groups, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "kind",
                                            attention_names[r->groups[g].kind], "layers",
                                            number(r->groups[g].n_layers), "window",
                                            number(r->groups[g].window), "token_bytes",
                                            number(r->groups[g].token_bytes), "state_bytes",
                                            number(r->groups[g].state_bytes), "token_bytes_per_gpu",
                                            number(most_token_bytes(r, g)), "state_bytes_per_gpu",
                                            number(most_state_bytes(r, g))));
  return groups;
}

static json_t *
json_stages(const report *r) {
  json_t *stages = json_array();
  for (guint32 stage = 0; stage < r->parallel.pipeline; stage++) {
    guint32 first, count;
    oct_parallel_stage(r->spec, &r->parallel, stage, &first, &count);
    json_array_append_new(
        stages, json_pack("{s:o, s:o, s:o, s:o, s:o}", "first_layer", number(first), "layers",
                          number(count), "weight_bytes_per_gpu", number(rank_bytes(r, stage)),
                          "token_bytes_per_gpu", number(stage_token_bytes(r, stage)),
                          "state_bytes_per_gpu", number(stage_state_bytes(r, stage))));
  }
  return stages;
}

static json_t *
json_report(const report *r) {
  const oct_parallel *p = &r->parallel;
  oct_weight_sum total = oct_weights_total(&r->weights);
  json_t *layout =
      json_pack("{s:o, s:o, s:o, s:o, s:b, s:b, s:b}", "tensor", number(p->tensor), "pipeline",
                number(p->pipeline), "data", number(p->data), "decode_context",
                number(p->decode_context), "expert_parallel", (int)p->expert_parallel,
                "shard_latent", (int)p->shard_latent, "replicate_shared", (int)p->replicate_shared);
  return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "name",
                   r->spec->name, "architecture", r->spec->architecture, "layers",
                   number(r->spec->n_layers), "parameters", number(total.parameters),
                   "active_parameters", number(oct_model_active_parameters(r->spec)),
                   "weight_bytes", number(total.bytes), "kv_cache_dtype", oct_dtype_name(r->kv),
                   "expert_bytes", number(first_expert(r->spec).bytes), "layout", layout, "weights",
                   json_classes(r), "layer_groups", json_groups(r), "stages", json_stages(r));
}

/* Writes `value`, which it takes, to a file, or to stdout for "-". */
static int
write_json(const char *path, json_t *value) {
  gboolean to_stdout = g_str_equal(path, "-");
  FILE *file = to_stdout ? stdout : fopen(path, "we");
  gboolean ok = file != NULL && json_dumpf(value, file, JSON_INDENT(2)) == 0 &&
                fputc('\n', file) != EOF && fflush(file) == 0;
  if (file != NULL && !to_stdout && fclose(file) != 0)
    ok = FALSE;
  json_decref(value);
  if (ok)
    return OCT_EXIT_OK;
  return oct_cli_fail("model", g_error_new(G_FILE_ERROR, G_FILE_ERROR_FAILED,
                                           "%s cannot be written: %s", path, g_strerror(errno)));
}

/* --- the two commands ----------------------------------------------------------------------------
 */

static int
list_models(const options *o) {
  g_auto(GStrv) names = oct_model_zoo_names(o->zoo);
  json_t *models = json_array();
  gboolean table = o->json == NULL || !g_str_equal(o->json, "-");
  if (table)
    printf("%-22s %-12s %12s %12s %12s %14s %16s\n", "name", "architecture", "parameters B",
           "active B", "weights GB", "KV B/token", "state B/sequence");
  for (char **name = names; *name != NULL; name++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_model_spec) spec = oct_model_spec_load(*name, o->zoo, &error);
    if (spec == NULL) {
      json_decref(models);
      return oct_cli_fail("model", g_steal_pointer(&error));
    }
    oct_weights weights;
    oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
    guint64 token_bytes = 0, state_bytes = 0;
    oct_model_weights(spec, &weights);
    oct_weight_sum total = oct_weights_total(&weights);
    guint64 active = oct_model_active_parameters(spec);
    guint n = oct_model_groups(spec, OCT_DTYPE_BF16, groups);
    for (guint g = 0; g < n; g++) {
      token_bytes += groups[g].token_bytes;
      state_bytes += groups[g].state_bytes;
    }
    if (table)
      printf("%-22s %-12s %12.2f %12.2f %12.2f %14s %16s\n", *name, spec->architecture,
             (double)total.parameters / 1e9, (double)active / 1e9, (double)total.bytes / 1e9,
             grouped(token_bytes), grouped(state_bytes));
    json_array_append_new(
        models, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "name", *name, "architecture",
                          spec->architecture, "parameters", number(total.parameters),
                          "active_parameters", number(active), "weight_bytes", number(total.bytes),
                          "token_bytes", number(token_bytes), "state_bytes", number(state_bytes)));
  }
  if (o->json != NULL)
    return write_json(o->json, models);
  json_decref(models);
  return OCT_EXIT_OK;
}

/* "48,45" into stage_layers. */
static gboolean
parse_stages(const char *text, oct_parallel *parallel) {
  g_auto(GStrv) parts = g_strsplit(text, ",", OCT_PARALLEL_STAGES_MAX + 1);
  guint n = g_strv_length(parts);
  if (n == 0 || n > OCT_PARALLEL_STAGES_MAX)
    return FALSE;
  for (guint i = 0; i < n; i++) {
    guint64 layers;
    if (!g_ascii_string_to_unsigned(parts[i], 10, 1, OCT_MODEL_LAYERS_MAX, &layers, NULL))
      return FALSE;
    parallel->stage_layers[i] = (guint32)layers;
  }
  return TRUE;
}

/* Returns OCT_CLI_GO_ON or the status to exit with. */
static int
parse_layout(const options *o, oct_parallel *parallel) {
  const struct {
    const char *name;
    int given;
    guint32 *size;
  } sizes[] = {
      {"tensor-parallel-size", o->tensor, &parallel->tensor},
      {"pipeline-parallel-size", o->pipeline, &parallel->pipeline},
      {"data-parallel-size", o->data, &parallel->data},
      {"decode-context-parallel-size", o->decode_context, &parallel->decode_context},
  };
  *parallel = OCT_PARALLEL_DEFAULT;
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
    if (sizes[i].given < 1 || sizes[i].given > OCT_PARALLEL_WORLD_MAX)
      return oct_cli_refuse("model", "--%s %d: allowed are 1 to %d", sizes[i].name, sizes[i].given,
                            OCT_PARALLEL_WORLD_MAX);
    *sizes[i].size = (guint32)sizes[i].given;
  }
  parallel->expert_parallel = o->expert_parallel;
  parallel->shard_latent = !o->replicate_latent;
  parallel->replicate_shared = o->replicate_shared;
  if (o->stage_layers != NULL && !parse_stages(o->stage_layers, parallel))
    return oct_cli_refuse("model",
                          "--pipeline-layers '%s': wanted are up to %d numbers, as in 48,45",
                          o->stage_layers, OCT_PARALLEL_STAGES_MAX);
  return OCT_CLI_GO_ON;
}

/* `auto` keeps KV as the checkpoint keeps its activations. */
static int
parse_kv(const options *o, const oct_model_spec *spec, oct_dtype *kv) {
  const char *name = o->kv != NULL ? o->kv : "auto";
  if (g_str_equal(name, "auto"))
    *kv = spec->types.base == OCT_DTYPE_F16 ? OCT_DTYPE_F16 : OCT_DTYPE_BF16;
  else if (g_str_equal(name, "bfloat16"))
    *kv = OCT_DTYPE_BF16;
  else if (g_str_equal(name, "fp8") || g_str_equal(name, "fp8_e4m3"))
    *kv = OCT_DTYPE_FP8;
  else
    return oct_cli_refuse("model", "--kv-cache-dtype '%s': allowed are auto, bfloat16 and fp8",
                          name);
  return OCT_CLI_GO_ON;
}

static int
show_model(const options *o, const char *name) {
  report r = {0};
  GError *error = NULL;
  int status = parse_layout(o, &r.parallel);
  if (status != OCT_CLI_GO_ON)
    return status;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load(name, o->zoo, &error);
  if (spec == NULL)
    return oct_cli_fail("model", error);
  r.spec = spec;
  status = parse_kv(o, spec, &r.kv);
  if (status != OCT_CLI_GO_ON)
    return status;
  if (!oct_parallel_check(spec, &r.parallel, &error))
    return oct_cli_fail("model", error);
  oct_model_weights(spec, &r.weights);
  r.n_groups = oct_model_groups(spec, r.kv, r.groups);
  for (guint32 stage = 0; stage < r.parallel.pipeline; stage++) {
    oct_model_rank_weights(spec, &r.parallel, stage, &r.rank[stage]);
    if (rank_bytes(&r, stage) > rank_bytes(&r, r.fullest))
      r.fullest = stage;
  }
  if (o->json == NULL || !g_str_equal(o->json, "-"))
    print_report(&r);
  return o->json != NULL ? write_json(o->json, json_report(&r)) : OCT_EXIT_OK;
}

/* What only the twin's layouts have is refused: the plan is that of the cuda backend's loader. */
static int
plan_model(const options *o, const char *name) {
  const struct {
    const char *name;
    gboolean given;
  } others[] = {{"replicate-latent", o->replicate_latent},
                {"replicate-shared-experts", o->replicate_shared},
                {"kv-cache-dtype", o->kv != NULL}};
  for (guint i = 0; i < G_N_ELEMENTS(others); i++)
    if (others[i].given)
      return oct_cli_refuse("model", "--%s is of show: plan says what ranks read from the files",
                            others[i].name);
  oct_parallel parallel;
  int status = parse_layout(o, &parallel);
  return status == OCT_CLI_GO_ON ? oct_cmd_model_plan(name, &parallel, o->zoo, o->json) : status;
}

static int
run(const options *o, int argc, char **argv) {
  if (g_str_equal(argv[1], "list"))
    return argc == 2 ? list_models(o) : oct_cli_refuse("model", "list takes no argument");
  if (g_str_equal(argv[1], "verify"))
    return oct_cli_refuse("model", "its options follow verify: octet model verify [OPTION…] …");
  gboolean plan = g_str_equal(argv[1], "plan");
  if (!plan && !g_str_equal(argv[1], "show"))
    return oct_cli_refuse("model", "there is no '%s': list, show, plan or verify", argv[1]);
  if (argc != 3)
    return oct_cli_refuse("model", "%s which model?", argv[1]);
  return plan ? plan_model(o, argv[2]) : show_model(o, argv[2]);
}

int
oct_cmd_model(int argc, char **argv) {
  options o = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1};
  const GOptionEntry entries[] = {
      {"tensor-parallel-size", 0, 0, G_OPTION_ARG_INT, &o.tensor,
       "(-tp) GPUs that share heads and widths", "N"},
      {"pipeline-parallel-size", 0, 0, G_OPTION_ARG_INT, &o.pipeline, "(-pp) Stages of layers",
       "N"},
      {"pipeline-layers", 0, 0, G_OPTION_ARG_STRING, &o.stage_layers,
       "Layers of each stage (default: evenly)", "N,N…"},
      {"data-parallel-size", 0, 0, G_OPTION_ARG_INT, &o.data, "(-dp) Replicas of the attention",
       "N"},
      {"enable-expert-parallel", 0, 0, G_OPTION_ARG_NONE, &o.expert_parallel,
       "Whole experts on each GPU, over tensor x data", NULL},
      {"decode-context-parallel-size", 0, 0, G_OPTION_ARG_INT, &o.decode_context,
       "GPUs that share out a sequence's tokens", "N"},
      {"replicate-latent", 0, 0, G_OPTION_ARG_NONE, &o.replicate_latent,
       "Show: projections of experts' latents, and their router, whole on each GPU", NULL},
      {"replicate-shared-experts", 0, 0, G_OPTION_ARG_NONE, &o.replicate_shared,
       "Show: shared experts whole on each GPU", NULL},
      {"kv-cache-dtype", 0, 0, G_OPTION_ARG_STRING, &o.kv, "Show: auto, bfloat16 or fp8", "TYPE"},
      {"zoo", 0, 0, G_OPTION_ARG_FILENAME, &o.zoo, "Folder of NAME.json files", "FOLDER"},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o.json, "Write the figures to a file, - for stdout",
       "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  const oct_cli_usage usage = {
      .command = "model",
      .arguments = "list | show MODEL | plan MODEL | verify CHECKPOINT",
      .summary =
          "Lists the models that octet knows, shows what one takes in memory, says which bytes\n"
          "each rank reads from its files, or checks the files of one.",
      .details = "MODEL is a name of the list, a config.json or .gguf file, or a folder that holds "
                 "one;\nfor plan, files are those of the weights, and without any the config's "
                 "types count.\n'octet model verify --help' tells the options of verify.\n"
                 "Figures per GPU are those of the fullest pipeline stage.",
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 2,
  };
  /* verify has options of its own. */
  if (argc > 1 && g_str_equal(argv[1], "verify"))
    return oct_cmd_model_verify(argc - 1, argv + 1);
  g_autoptr(GPtrArray) kept = g_ptr_array_new_with_free_func(g_free);
  oct_cli_expand(argc, argv, kept);
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = run(&o, argc, argv);
  g_free(o.stage_layers);
  g_free(o.kv);
  g_free(o.json);
  g_free(o.zoo);
  return status;
}
