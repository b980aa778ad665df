/* Which latent attention kernel serves a batch, how the work is dealt out, and the workspace. */
#include "kernels/cuda/latent.cuh"

/* Sequences of at most so many tokens share contexts out; longer ones are prompts. */
#define VERIFY_MAX 16
/* Keys of a split at least, for the kernel of other machines than Hopper's. */
#define SPLIT_KEYS    64
#define BLOCK_KEYS    128
#define SHORT_CONTEXT 2048
#define SHORT_SEQS    32 /* of up to 16 heads, from so many on */
#define SHORT_FEW     16 /* of more heads, below so many */
/* Units of a share at least; and from how many on it counts that beginning a sequence takes time.
 */
#define SHARE_UNITS 2
#define SHARE_LARGE 24

static bool
is_in_fixed_order(const oct_cuda_queue *queue) {
  return (queue->flags & OCT_CUDA_FIXED_ORDER) != 0;
}

static attend_args
make_args(const oct_cuda_mla *c) {
  attend_args a = {};
  a.batch = *c->batch;
  a.kv = c->kv;
  a.kv.has_values = false;
  a.tables = c->tables;
  a.n_heads = a.group = a.own_heads = c->n_heads;
  a.scale = c->scale;
  a.q = c->q;
  a.out = c->out;
  a.q_stride = (size_t)c->n_heads * c->kv.width;
  a.out_stride = (size_t)c->n_heads * c->lora;
  a.value_width = c->lora;
  a.n_seqs = c->batch->n_seqs;
  a.n_splits = 1;
  return a;
}

/* ---------------------------------------------------------------- Hopper's */

/* A launch, or one after the other: N rows at a time by so many blocks. */
struct latent_launch {
  latent_args args; /* no groups: none */
  uint32_t n, blocks;
  uint32_t step; /* groups of a launch; 0: the workspace has no room for the parts of one */
};

static bool
can_hopper(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_type type) {
  return queue->capability == 90 && type == OCT_CUDA_BF16 && a.kv.type != OCT_CUDA_F32 &&
         a.kv.width == LATENT_WIDTH && a.value_width == LATENT_LORA && a.kv.page_tokens >= 8 &&
         (uintptr_t)a.kv.base % 16 == 0 && a.kv.page_bytes % 16 == 0 &&
         (a.kv.type == OCT_CUDA_FP8 || a.kv.k_scale == NULL);
}

/* Rows at a time: as few runs as there can be, of equal length. */
static uint32_t
rows_at_a_time(uint32_t rows) {
  uint32_t each = ceil_div(rows, ceil_div(rows, LATENT_ROWS));
  return each <= 16 ? 16 : each <= 32 ? 32 : each <= 48 ? 48 : LATENT_ROWS;
}

/* Bytes of so many rows of parts. */
static size_t
part_bytes(size_t rows) {
  return rows * (LATENT_LORA + 2) * sizeof(float);
}

/* Of `wanted` parts of so many rows, those that have room. */
static uint32_t
parts_within(uint64_t wanted, uint32_t rows, size_t bytes) {
  size_t n = bytes / part_bytes(rows);
  return (uint32_t)(wanted < n ? wanted : n);
}

/* Groups [first, first + n) of `rows` rows at most, none of which sees more than `context` keys,
 * with room for parts of so many bytes. In a fixed order a group's parts are what they are, and
 * fewer groups go at a time; else there are fewer shares. */
static latent_launch
share_out(const oct_cuda_queue *queue, const latent_args &base, uint32_t first, uint32_t n,
          uint32_t rows, uint32_t context, size_t bytes) {
  latent_launch l = {base, rows_at_a_time(rows), 0, within_grid(n)};
  latent_args *h = &l.args;
  h->a.first_seq = first;
  h->a.n_seqs = n;
  h->rows = rows;
  h->runs = ceil_div(rows, l.n);
  if (is_in_fixed_order(queue)) {
    h->deal = LATENT_CHUNKS;
    oct_attend_fix_splits(context, &h->a);
    l.blocks = h->runs * h->a.n_splits; /* of a group */
    if (h->a.n_splits > 1)
      l.step = parts_within(l.step, l.n * l.blocks, bytes);
    return l;
  }
  h->deal = LATENT_SHARES;
  uint32_t most = queue->sm_count > h->runs ? queue->sm_count / h->runs : 1;
  most = parts_within(most, 2 * l.n * h->runs, bytes);
  most = most > 1 ? most : 1;
  uint64_t units = (uint64_t)n * ceil_div(context, LATENT_KEYS), shares = units / SHARE_UNITS;
  h->a.n_shares = shares < 1 ? 1 : shares < most ? (uint32_t)shares : most;
  h->cost = units >= (uint64_t)h->a.n_shares * SHARE_LARGE ? LATENT_BEGIN : 0;
  l.blocks = h->a.n_shares * h->runs;
  return l;
}

/* Sequences [first, first + n) with prompts, a run after the other. */
static latent_launch
share_prompts(const oct_cuda_queue *queue, const latent_args &base, uint32_t first, uint32_t n) {
  latent_launch l = {base, LATENT_ROWS, 0, n};
  latent_args *h = &l.args;
  h->a.first_seq = first;
  h->a.n_seqs = n;
  h->deal = LATENT_TILES;
  h->runs = h->a.batch.n_tokens * h->a.group / l.n + n;
  l.blocks = h->runs < queue->sm_count ? h->runs : queue->sm_count;
  return l;
}

/* Of the largest launch's parts. */
static size_t
launch_bytes(const latent_launch &l) {
  const latent_args &h = l.args;
  size_t places = h.a.n_seqs == 0           ? 0
                  : h.deal == LATENT_SHARES ? (l.blocks > h.runs ? 2 * (size_t)l.blocks : 0)
                  : h.deal == LATENT_CHUNKS ? (h.a.n_splits > 1 ? (size_t)l.step * l.blocks : 0)
                                            : 0;
  return part_bytes(places * l.n);
}

static int
launch_groups(const oct_cuda_queue *queue, const latent_launch &l, void *workspace) {
  latent_args h = l.args;
  h.a.partial = (float *)((char *)workspace + OCT_ATTEND_COUNTS);
  int error = OCT_CUDA_OK;
  for (uint32_t done = 0; done < l.args.a.n_seqs && error == OCT_CUDA_OK; done += l.step) {
    uint32_t left = l.args.a.n_seqs - done;
    h.a.first_seq = l.args.a.first_seq + done;
    h.a.n_seqs = left < l.step ? left : l.step;
    error = oct_latent_hopper(queue, h, l.n,
                              h.deal == LATENT_CHUNKS ? h.a.n_seqs * l.blocks : l.blocks);
  }
  return error;
}

/* ---------------------------------------------------------------- other machines' */

/* Splits for the least time, of those that so many bytes have room for. Blocks run in waves, two a
 * multiprocessor, and each costs as much as BLOCK_KEYS more keys beside its own, as does joining
 * the splits. Of nearly equal times the one with more splits, since contexts differ. Returns how
 * many tokens go at a time: in a fixed order splits are what they are. */
static uint32_t
choose_splits(const oct_cuda_queue *queue, uint32_t context, size_t bytes, attend_args *a) {
  uint32_t n = within_grid(a->n_seqs);
  if (is_in_fixed_order(queue)) {
    oct_attend_fix_splits(context, a);
    return a->n_splits > 1 ? parts_within(n, a->n_heads * a->n_splits, bytes) : n;
  }
  uint32_t pairs = a->n_seqs * ceil_div(a->group, 16), most = ceil_div(context, SPLIT_KEYS);
  most = most < OCT_ATTEND_SPLITS_MAX ? most : OCT_ATTEND_SPLITS_MAX;
  most = parts_within(most, a->n_seqs * a->n_heads, bytes);
  double least = 1e300;
  a->n_splits = 1;
  for (uint32_t s = 1; s <= most; s++) {
    double time =
        (double)ceil_div(pairs * s, 2 * queue->sm_count) * (ceil_div(context, s) + BLOCK_KEYS) +
        (s > 1 ? BLOCK_KEYS : 0);
    if (time < least * 1.08)
      a->n_splits = s;
    least = time < least ? time : least;
  }
  return n;
}

/* ---------------------------------------------------------------- the choice */

struct latent_plan {
  uint32_t path;
  latent_launch decode, prompts; /* HOPPER */
  attend_args args;              /* DECODE, PLAIN */
  uint32_t step;                 /* DECODE: tokens of a launch; 0: no room for one */
};

/* Short contexts, one token each, for which the other kernel, two blocks of which run at a time, is
 * as fast or faster: what stands before and behind a block's works counts there. With up to 16
 * heads that is little, unless there are many; with more multiplying counts, unless there are few
 * sequences. */
static bool
suits_other(const oct_cuda_mla *c) {
  bool is_short = c->max_queries <= 1 && c->max_context <= SHORT_CONTEXT;
  uint32_t n = c->batch->n_seqs;
  return is_short && (c->n_heads > 16 ? n < SHORT_FEW : n >= SHORT_SEQS);
}

/* What a workspace has behind its counts. */
static size_t
room_for_parts(size_t workspace_bytes) {
  return workspace_bytes > OCT_ATTEND_COUNTS ? workspace_bytes - OCT_ATTEND_COUNTS : 0;
}

static latent_plan
make_plan(const oct_cuda_queue *queue, const oct_cuda_mla *c) {
  latent_plan p = {OCT_CUDA_ATTENTION_PLAIN, {}, {}, make_args(c), c->batch->n_seqs};
  size_t room = room_for_parts(c->workspace_bytes);
  bool any = c->path == OCT_CUDA_ATTENTION_AUTO, is_fixed = is_in_fixed_order(queue);
  /* In a fixed order the kernel that has a block for each token: its sum is the same one alone and
   * within a run. */
  bool hopper = any && !is_fixed && !suits_other(c);
  if ((hopper || c->path == OCT_CUDA_ATTENTION_HOPPER) && can_hopper(queue, p.args, c->type)) {
    p.path = OCT_CUDA_ATTENTION_HOPPER;
    latent_args base = {p.args, LATENT_SHARES, 0, 0, 0};
    uint32_t n = c->batch->n_seqs, queries = c->max_queries > 1 ? c->max_queries : 1;
    uint32_t n_decode = queries == 1 ? n : c->n_decode < n ? c->n_decode : n;
    if (queries <= VERIFY_MAX && (!is_fixed || queries == 1))
      n_decode = n;
    else
      queries = 1;
    if (n_decode > 0)
      p.decode = share_out(queue, base, 0, n_decode, queries * c->n_heads, c->max_context, room);
    if (n_decode < n)
      p.prompts = share_prompts(queue, base, n_decode, n - n_decode);
    return p;
  }
  if ((any || c->path == OCT_CUDA_ATTENTION_DECODE) &&
      oct_attend_latent_can(queue, p.args, c->type)) {
    p.path = OCT_CUDA_ATTENTION_DECODE;
    p.step = p.args.n_seqs = c->batch->n_tokens;
    if (c->max_queries <= 1 || is_fixed)
      p.step = choose_splits(queue, c->max_context, room, &p.args);
  }
  return p;
}

/* No kernel runs over parts that have no room. */
static bool
can_run(const latent_plan &p) {
  return p.path == OCT_CUDA_ATTENTION_HOPPER ? p.decode.args.a.n_seqs == 0 || p.decode.step > 0
                                             : p.args.n_seqs == 0 || p.step > 0;
}

static size_t
plan_bytes(const latent_plan &p) {
  size_t bytes = launch_bytes(p.decode);
  if (p.path == OCT_CUDA_ATTENTION_DECODE && p.args.n_splits > 1)
    bytes = part_bytes((size_t)p.step * p.args.n_heads * p.args.n_splits);
  return bytes > 0 ? OCT_ATTEND_COUNTS + bytes : 0;
}

/* HOPPER or DECODE. */
static int
run_plan(const oct_cuda_queue *queue, const latent_plan &p, void *workspace) {
  if (!can_run(p))
    return OCT_CUDA_UNSUPPORTED;
  int error = OCT_CUDA_OK;
  if (p.path == OCT_CUDA_ATTENTION_HOPPER) {
    error = launch_groups(queue, p.prompts, workspace);
    return error != OCT_CUDA_OK ? error : launch_groups(queue, p.decode, workspace);
  }
  attend_args a = p.args;
  a.partial = (float *)((char *)workspace + OCT_ATTEND_COUNTS);
  for (uint32_t done = 0; done < p.args.n_seqs && error == OCT_CUDA_OK; done += p.step) {
    uint32_t left = p.args.n_seqs - done;
    a.first_seq = p.args.first_seq + done;
    a.n_seqs = left < p.step ? left : p.step;
    error = oct_attend_latent(queue, a);
  }
  return error;
}

/* ---------------------------------------------------------------- the workspace */

/* Of a sequence's parts in a fixed order: HOPPER's, whose runs of rows may be more than its rows.
 */
static size_t
fixed_bytes(const attend_args &a, uint32_t context) {
  attend_args of = a;
  oct_attend_fix_splits(context, &of);
  uint32_t n = rows_at_a_time(a.n_heads);
  return of.n_splits > 1 ? part_bytes((size_t)ceil_div(a.n_heads, n) * n * of.n_splits) : 0;
}

/* Of the most parts that a plan of so many groups, rows of one and keys would like to have: it
 * grows with each. */
static size_t
liked_bytes(const oct_cuda_queue *queue, const attend_args &a, uint32_t rows, uint32_t context) {
  uint32_t splits = ceil_div(context, SPLIT_KEYS), n = ceil_div(rows, 16) * 16;
  uint64_t shares = (uint64_t)a.n_seqs * ceil_div(context, LATENT_KEYS) / SHARE_UNITS *
                    ceil_div(rows, 48 /* of a run at least, where there are several */);
  splits = splits < OCT_ATTEND_SPLITS_MAX ? splits : OCT_ATTEND_SPLITS_MAX;
  n = n < LATENT_ROWS ? n : LATENT_ROWS;
  shares = shares < queue->sm_count ? shares : queue->sm_count;
  uint64_t by_shares = 2 * shares * n, by_splits = (uint64_t)a.n_seqs * a.n_heads * splits;
  return splits > 1 ? part_bytes(by_shares > by_splits ? by_shares : by_splits) : 0;
}

/* With one sequence's parts in a fixed order everything runs; with more it is faster. */
static size_t
workspace_of(const oct_cuda_queue *queue, const attend_args &a, uint32_t rows, uint32_t context) {
  bool fixed = is_in_fixed_order(queue);
  size_t one = fixed ? fixed_bytes(a, context) : 0;
  size_t liked = fixed ? a.n_seqs * one : liked_bytes(queue, a, rows, context);
  size_t most = fixed ? OCT_CUDA_FIXED_BYTES : OCT_CUDA_PARTS_BYTES;
  size_t bytes = liked < most ? liked : most;
  bytes = bytes > one ? bytes : one;
  return bytes > 0 ? OCT_ATTEND_COUNTS + bytes : 0;
}

size_t
oct_cuda_mla_workspace(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  attend_args a = make_args(call);
  uint32_t queries = call->max_queries < VERIFY_MAX ? call->max_queries : VERIFY_MAX;
  if (call->path == OCT_CUDA_ATTENTION_PLAIN || !oct_attend_latent_can(queue, a, call->type))
    return 0;
  if (is_in_fixed_order(queue))
    a.n_seqs = call->batch->n_tokens;
  return workspace_of(queue, a, (queries > 1 ? queries : 1) * a.n_heads, call->max_context);
}

size_t
oct_cuda_mla_used(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  latent_plan p = make_plan(queue, call);
  return p.path == OCT_CUDA_ATTENTION_PLAIN || can_run(p) ? plan_bytes(p) : SIZE_MAX;
}

uint32_t
oct_cuda_mla_paths(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  return 1u << make_plan(queue, call).path;
}

int
oct_cuda_mla_attend(const oct_cuda_queue *queue, const oct_cuda_mla *call) {
  if (call->batch->n_tokens == 0 || call->batch->n_seqs == 0)
    return OCT_CUDA_OK;
  if (call->kv.n_heads != 1 || call->kv.width != call->lora + call->rope || call->lora > 512)
    return OCT_CUDA_UNSUPPORTED;
  latent_plan p = make_plan(queue, call);
  if (p.path == OCT_CUDA_ATTENTION_PLAIN)
    return oct_attend_plain(queue, call->type, p.args);
  return run_plan(queue, p, call->workspace);
}

/* ---------------------------------------------------------------- parts of contexts */

oct_cuda_attention_path
oct_latent_part_path(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_type type,
                     oct_cuda_attention_path wanted) {
  bool any = wanted == OCT_CUDA_ATTENTION_AUTO;
  if ((any || wanted == OCT_CUDA_ATTENTION_HOPPER) && can_hopper(queue, a, type))
    return OCT_CUDA_ATTENTION_HOPPER;
  if ((any || wanted == OCT_CUDA_ATTENTION_DECODE) && oct_attend_latent_can(queue, a, type))
    return OCT_CUDA_ATTENTION_DECODE;
  return OCT_CUDA_ATTENTION_PLAIN;
}

static latent_plan
plan_part(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_attention_path path,
          uint32_t context, size_t workspace_bytes) {
  latent_plan p = {(uint32_t)path, {}, {}, a, a.n_seqs};
  size_t room = room_for_parts(workspace_bytes);
  if (path == OCT_CUDA_ATTENTION_HOPPER)
    p.decode = share_out(queue, {a, LATENT_SHARES, 0, 0, 0}, 0, a.n_seqs, a.n_heads, context, room);
  else if (path == OCT_CUDA_ATTENTION_DECODE)
    p.step = choose_splits(queue, context, room, &p.args);
  return p;
}

size_t
oct_latent_part_bytes(const oct_cuda_queue *queue, const attend_args &a, uint32_t context) {
  return workspace_of(queue, a, a.n_heads, context);
}

size_t
oct_latent_part_used(const oct_cuda_queue *queue, const attend_args &a,
                     oct_cuda_attention_path path, uint32_t context, size_t workspace_bytes) {
  latent_plan p = plan_part(queue, a, path, context, workspace_bytes);
  return can_run(p) ? plan_bytes(p) : SIZE_MAX;
}

int
oct_latent_part(const oct_cuda_queue *queue, const attend_args &a, oct_cuda_attention_path path,
                uint32_t context, void *workspace, size_t workspace_bytes) {
  return run_plan(queue, plan_part(queue, a, path, context, workspace_bytes), workspace);
}
