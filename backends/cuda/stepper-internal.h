/* The parts of a stepper. Private to backends/cuda. */
#ifndef OCT_BACKENDS_CUDA_STEPPER_INTERNAL_H
#define OCT_BACKENDS_CUDA_STEPPER_INTERNAL_H

#include "backends/cuda/stepper.h"

#define OCT_CUDA_GRAPH_MOST 512
#define OCT_CUDA_GRAPH_TOKENS                                                                      \
  2048                            /* of steps with prompts: in larger ones launches cost nothing   \
                                   */
#define OCT_CUDA_GRAPHS_MAX  192  /* kept; decodes and the shortest contexts are far fewer */
#define OCT_CUDA_CONTEXTS    5    /* kinds of graphs by context */
#define OCT_CUDA_CONTEXT_MIN 2048 /* positions; each kind has four times more */

/* A graph and what it is of; `graph` is NULL until such a step comes again. */
typedef struct oct_cuda_graph {
  oct_cuda_shape shape;
  guint32 context; /* kind */
  gboolean plain;
  cudaGraphExec_t graph;
  guint64 used; /* when last */
} oct_cuda_graph;

/* What a step has on the device, apart for each place of the ring where stages follow each other.
 */
typedef struct oct_cuda_inputs {
  guint8 *head;
  oct_cuda_batch batch;
  const oct_cuda_sample_row *rows; /* in the head */
  const guint32 *seq_rows;
  guint32 n_rows; /* of the step */
  /* When the step began and ended on the device, and behind it the tokens, [max tokens]. */
  oct_cuda_span *span;
  guint32 *tokens, *accepted; /* accepted: [max slots] */
} oct_cuda_inputs;

/* One place of the ring in pinned memory. */
typedef struct oct_cuda_place {
  guint8 *head, *tail; /* as sent */
  gsize tail_room;
  guint64 *masks; /* [max slots, words] */
  oct_cuda_output output;
  gsize logprobs_room; /* entries */
  cudaEvent_t done;
} oct_cuda_place;

struct oct_cuda_stepper {
  oct_cuda_stepper_options options;
  oct_cuda_rank rank;
  oct_cuda_model model;
  oct_cuda_memory memory;
  oct_cuda_comm *comms[OCT_CUDA_CIRCLES]; /* NULL: no such circle */
  oct_cuda_forward *forward;
  const oct_instance_config *config;
  guint32 max_tokens, logit_rows, words, n_inputs;
  gsize head_bytes;        /* of the largest head */
  oct_cuda_inputs *inputs; /* [n_inputs] */
  oct_cuda_place *places;  /* [ring] */
  oct_cuda_slots slots;    /* on the device */
  guint32 *tables;
  guint8 *tail;
  gsize tail_room;
  guint32 **counts;       /* [max slots]: of penalties, as they are needed */
  oct_logit_bias *biases; /* [max slots, OCT_BIASES_MAX] */
  guint32 *stops;         /* [max slots, OCT_CUDA_STOPS_MAX] */
  guint64 *masks;         /* [max slots, words] */
  double *sums;           /* [max slots, hidden]: of pooled means, when first needed */
  float *pooled;          /* [max slots, hidden] */
  oct_token_logprob *logprobs;
  gsize logprobs_room; /* entries */
  void *sample_workspace;
  cudaEvent_t logits_ready;
  guint64 caught_up;  /* the latest step whose tokens this stage has */
  oct_cuda_pass pass; /* of the step that is being enqueued */
  oct_cuda_padding padding;
  gboolean eager;         /* padded steps are enqueued kernel by kernel all the same */
  oct_cuda_graph *graphs; /* [OCT_CUDA_GRAPHS_MAX] */
  guint32 n_graphs;
  guint64 graph_turn;
};

/* Bytes of a step's times and so many tokens behind them, in whole words of 16. */
static inline gsize
oct_cuda_span_bytes(gsize n_tokens) {
  return (sizeof(oct_cuda_span) + n_tokens * sizeof(guint32) + 15) / 16 * 16;
}

/* The inputs of the step at `at`. */
oct_cuda_inputs *oct_cuda_stepper_inputs(oct_cuda_stepper *s, guint32 at);
/* Batch, layers, and the logits of the first rows of the step. */
void oct_cuda_stepper_enqueue_forward(oct_cuda_stepper *s, const oct_cuda_domain_plan *d,
                                      oct_cuda_inputs *inputs);
/* The same of a padded step, by a graph where there is one: graphs of decodes are captured when
 * they are first needed, others when they are for the second time. The same bits come of it either
 * way.
 */
gboolean oct_cuda_stepper_run_padded(oct_cuda_stepper *s, const oct_cuda_domain_plan *d,
                                     oct_cuda_inputs *inputs);
void oct_cuda_stepper_free_graphs(oct_cuda_stepper *s);
/* Makes the graphs of decodes in the shortest contexts. */
gboolean oct_cuda_stepper_warm_graphs(oct_cuda_stepper *s);
/* Between device and pinned memory on the compute stream, by a kernel when it is little: what pages
 * the copy engines have under way is then not waited for. Notes failures as of `what`. */
gboolean oct_cuda_stepper_move(oct_cuda_stepper *s, void *to, const void *from, gsize bytes,
                               const char *what);
/* AFTER or BEFORE copies of a step. */
gboolean oct_cuda_stepper_make_copies(oct_cuda_stepper *s, const oct_step *step,
                                      oct_copy_order order);

/* ---- mail.c */
gboolean oct_cuda_mail_join(oct_cuda_mail *mail, oct_cuda_stepper *s);
/* The residual stream from the stage before, and to the next one. */
gboolean oct_cuda_mail_receive(oct_cuda_mail *mail, oct_cuda_stepper *s, guint64 number, guint32 at,
                               guint32 n_tokens);
gboolean oct_cuda_mail_send(oct_cuda_mail *mail, oct_cuda_stepper *s, guint64 number, guint32 at,
                            guint32 n_tokens);
/* The tokens of step `number` to every earlier stage; and what came of it, on one of those. */
gboolean oct_cuda_mail_send_tokens(oct_cuda_mail *mail, oct_cuda_stepper *s, guint64 number,
                                   guint32 at, guint32 n_rows);
const guint32 *oct_cuda_mail_tokens(oct_cuda_mail *mail, oct_cuda_stepper *s, guint64 number,
                                    guint32 at);

#endif
