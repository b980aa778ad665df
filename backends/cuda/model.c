#include "backends/cuda/model.h"

#include "backends/arithmetic.h"
#include "kernels/cuda/peers.h"

gboolean
oct_cuda_source_open(oct_cuda_source *s, const oct_cuda_options *o, const oct_model_spec *spec,
                     GError **error) {
  GError *why = NULL;
  *s = (oct_cuda_source){.spec = spec};
  if (o->model != NULL) {
    g_autoptr(oct_map_report) report = oct_map_report_new();
    s->files = oct_model_files_open(o->model, NULL, o->format, o->seed, report, &why);
    if (s->files != NULL) {
      g_autofree char *line = oct_map_report_skipped_line(report);
      if (line != NULL)
        g_message("cuda: %s", line);
      s->map = s->files->map;
      s->spec = s->files->spec;
    }
  } else {
    s->map = oct_weight_map_new_dummy(spec, o->seed, &why);
  }
  if (why != NULL) {
    g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, why->message);
    g_error_free(why);
    return FALSE;
  }
  return oct_arithmetic_check(s->spec, error) && oct_arithmetic_check_same(s->spec, spec, error);
}

void
oct_cuda_source_close(oct_cuda_source *s) {
  if (s->files != NULL)
    oct_model_files_close(s->files);
  else
    oct_weight_map_free(s->map);
  *s = (oct_cuda_source){0};
}

oct_cuda_latent_row
oct_cuda_latent_row_of(const oct_cuda_layer *l, oct_cuda_type type) {
  if (l->ffn_spec->kind != OCT_FFN_LATENT_MOE || l->latent_down.rows == l->ffn_spec->latent)
    return (oct_cuda_latent_row){0};
  guint32 logits = (guint32)(l->latent_down.rows * oct_cuda_type_bytes(type) + 15) / 16 * 16;
  return (oct_cuda_latent_row){
      .logits = logits, .bytes = logits + (guint32)(l->router.rows * sizeof(float) + 15) / 16 * 16};
}

static gboolean
refuse(GError **error, const char *what) {
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "cuda: %s", what);
  return FALSE;
}

static gboolean
is_page_size(guint32 n) {
  return n >= 8 && n <= 256 && (n & (n - 1)) == 0;
}

gboolean
oct_cuda_model_supports(const oct_instance_config *c, GError **error) {
  const oct_parallel *p = &c->parallel;
  if (!oct_parallel_check(c->spec, p, error) || !oct_arithmetic_check(c->spec, error))
    return FALSE;
  for (guint32 i = 0; i < c->spec->n_attention && p->decode_context > 1; i++)
    if (c->spec->attention[i].kind == OCT_ATTENTION_WINDOW || c->spec->attention[i].sinks)
      return refuse(error, "decode context parallelism with windows or sinks is not done");
  if (p->expert_parallel && p->data > OCT_CUDA_PEERS_MAX)
    return refuse(error, "expert parallelism over more than 8 KV domains is not done");
  if (p->tensor > OCT_CUDA_PEERS_MAX)
    return refuse(error, "more than 8 ranks in a tensor group are not done");
  if (p->replicate_shared && p->tensor > 1)
    return refuse(error, "whole shared experts on every rank of a tensor group are not done");
  if (!is_page_size(c->block_size)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "cuda: block size %u, must be 8, 16, 32, 64, 128 or 256", c->block_size);
    return FALSE;
  }
  return TRUE;
}
