/* What the attention kernels share: their arguments, where keys and values are, the softmax's
 * pieces, and the matrix instruction of warps.
 *
 * Scores are kept times log2(e), so that exponentials are of base 2. */
#ifndef OCT_KERNELS_CUDA_ATTEND_CUH
#define OCT_KERNELS_CUDA_ATTEND_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/workspace.h"

#define OCT_LOG2E 1.4426950408889634f
/* Keys that a block of the decode kernel goes through at a time. */
#define OCT_ATTEND_UNIT    64
#define OCT_ATTEND_CLUSTER 16 /* blocks of a cluster at most: splits of a context */
/* In a fixed order a context is split every so many keys, or every 2, 4 … times as many so that
 * there are no more than so many splits: by its own length alone. */
#define OCT_ATTEND_CHUNK  256
#define OCT_ATTEND_CHUNKS 32
/* Runs on Hopper: every so many keys. */
#define OCT_ATTEND_PART 2048
/* Latents: keys of a split with a fixed order, doubled likewise; splits at most. */
#define OCT_ATTEND_FIXED_KEYS 1024
#define OCT_ATTEND_SPLITS_MAX 128
/* Counts of parts that have come stand first in a workspace, in a place of their own: what stands
 * behind them differs from call to call, and they are to be zero before each. */
#define OCT_ATTEND_COUNTS (256u << 10)

struct attend_args {
  oct_cuda_batch batch;
  oct_cuda_kv kv;
  oct_cuda_tables tables;
  uint32_t n_heads, group; /* group = n_heads / kv.n_heads */
  uint32_t own_heads;      /* of a member: q and out are [members, token, own_heads]; or n_heads */
  uint32_t window;
  float scale, soft_cap;
  const float *sinks;
  const void *q;
  void *out;
  size_t q_stride, out_stride;
  /* A part of each context: sequences are tokens, that see visible[token] keys, and what is found
   * goes to found, as oct_cuda_context_attention says. NULL: neither. */
  const uint32_t *visible;
  float *found;
  uint32_t value_width; /* kv.width, or the latent's */
  uint32_t first_seq;   /* sequences [first_seq, first_seq + n_seqs) are this launch's */
  uint32_t n_seqs;
  uint32_t n_splits, chunk; /* chunk 0: the context is cut evenly; else of short ones */
  bool in_cluster;          /* the blocks of all splits join them through shared memory */
  bool early;               /* what oct_cuda_attention.settled says */
  /* The batch's own keys and values, to be normed, rotated by angles and stored, and queries
   * likewise but for the store; angles NULL: that was done before. */
  const float *angles;
  const void *k, *v, *q_norm, *k_norm;
  size_t k_stride, v_stride;
  float eps;
  /* Of PART keys: so many tokens have room for their parts at a time; tokens of a sequence. */
  uint32_t room_tokens, max_queries;
  uint32_t n_shares; /* blocks that share all contexts out evenly; 0: splits */
  uint32_t *arrived; /* parts of a sequence and run of heads that have come, zero between calls */
  /* Latents: [token, head, split, value_width] then [token, head, split, 2] of top and sum, of
   * tokens [first_seq, first_seq + n_seqs). Of PART keys: [token modulo room_tokens, head, part] of
   * elements, top and sum. Decodes: a
   * part after another, [heads of a block, width] and top and sum of each. */
  float *partial;
};

/* Splits of latents in a fixed order, whatever is in the batch: room for those of any context of up
 * to so many keys. */
static inline void
oct_attend_fix_splits(uint32_t context, attend_args *a) {
  a->chunk = OCT_ATTEND_FIXED_KEYS;
  a->n_splits = ceil_div(context, a->chunk);
  if (a->n_splits > OCT_ATTEND_SPLITS_MAX)
    a->n_splits = OCT_ATTEND_SPLITS_MAX;
}

/* Keys of such a split of a context of so many. */
OCT_DEVICE uint32_t
fixed_chunk(const attend_args &a, uint32_t length) {
  uint32_t chunk = a.chunk;
  while (length > chunk * OCT_ATTEND_SPLITS_MAX)
    chunk *= 2;
  return chunk;
}

/* The pages of a sequence. */
struct page_reader {
  const char *base;
  const uint32_t *pages;
  size_t page_bytes, half_bytes; /* values are half_bytes behind their keys */
  uint32_t shift, mask, row_bytes;
  uint32_t head_bytes; /* of a head's run in a page, times the head */
};

OCT_DEVICE page_reader
open_pages(const oct_cuda_kv &kv, const oct_cuda_tables &tables, uint32_t slot, uint32_t head,
           uint32_t element_bytes) {
  page_reader r;
  r.base = (const char *)kv.base;
  r.pages = tables.pages + slot * tables.stride;
  r.page_bytes = kv.page_bytes;
  r.shift = 31 - __clz(kv.page_tokens);
  r.mask = kv.page_tokens - 1;
  r.row_bytes = kv.width * element_bytes;
  r.head_bytes = head * kv.page_tokens * r.row_bytes;
  r.half_bytes = (size_t)kv.n_heads * kv.page_tokens * r.row_bytes;
  return r;
}

OCT_DEVICE const char *
key_row(const page_reader &r, uint32_t position) {
  return r.base + r.pages[position >> r.shift] * r.page_bytes + r.head_bytes +
         (position & r.mask) * r.row_bytes;
}

/* 2^x; what is no normal number becomes 0. */
OCT_DEVICE float
power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* A raw product to a score in base 2: `scale` has log2(e) in it unless there is a cap. */
OCT_DEVICE float
cap_score(float x, float scale, float cap) {
  return cap > 0 ? cap * OCT_LOG2E * tanhf(x * scale / cap) : x * scale;
}

OCT_DEVICE float
score_scale(const attend_args &a, uint32_t kv_head) {
  float scale = a.scale * (a.kv.k_scale != NULL ? a.kv.k_scale[kv_head] : 1);
  return a.soft_cap > 0 ? scale : scale * OCT_LOG2E;
}

/* What values of a head are multiplied by once the softmax's sum is known. */
OCT_DEVICE float
value_scale(const attend_args &a, uint32_t kv_head) {
  const float *scales = a.kv.has_values ? a.kv.v_scale : a.kv.k_scale;
  return scales != NULL ? scales[kv_head] : 1;
}

/* Folds a sink into a softmax of (top, sum): what results have to be multiplied by. */
OCT_DEVICE float
finish_softmax(float top, float sum, const float *sinks, uint32_t head) {
  if (sinks == NULL)
    return sum > 0 ? 1 / sum : 0;
  float sink = sinks[head] * OCT_LOG2E, all = fmaxf(top, sink);
  if (top == -INFINITY)
    return 0;
  float factor = exp2f(top - all);
  return factor / (sum * factor + exp2f(sink - all));
}

/* ---------------------------------------------------------------- sequences of one token */

OCT_DEVICE uint32_t
decode_token(const attend_args &a, uint32_t seq) {
  return a.visible != NULL ? seq : a.batch.seq_first[seq];
}

OCT_DEVICE uint32_t
decode_slot(const attend_args &a, uint32_t seq) {
  return a.batch.seq_slot[a.visible != NULL ? a.batch.token_seq[seq] : seq];
}

/* Keys that its token sees; 0: there is none. */
OCT_DEVICE uint32_t
decode_length(const attend_args &a, uint32_t seq) {
  if (a.visible != NULL)
    return a.visible[seq];
  return a.batch.seq_first[seq] < a.batch.seq_first[seq + 1] ? a.batch.seq_start[seq] + 1 : 0;
}

/* A token has nothing to see: padding. */
OCT_DEVICE bool
sees_nothing(const attend_args &a, uint32_t token) {
  return a.visible != NULL ? a.visible[token] == 0 : a.batch.token_seq[token] == OCT_CUDA_NONE;
}

/* Rows of tokens by heads: queries, and what comes of them. */
OCT_DEVICE void
find_member(const attend_args &a, uint32_t token, uint32_t head, size_t *row, uint32_t *own) {
  uint32_t member = a.own_heads == a.n_heads ? 0 : head / a.own_heads;
  *row = (size_t)member * a.batch.n_tokens + token;
  *own = head - member * a.own_heads;
}

OCT_DEVICE const bf16 *
query_row(const attend_args &a, uint32_t token, uint32_t head) {
  size_t row;
  uint32_t own;
  find_member(a, token, head, &row, &own);
  return (const bf16 *)a.q + row * a.q_stride + (size_t)own * a.kv.width;
}

/* What a head's sums are multiplied by when its softmax came to top and sum. */
OCT_DEVICE float
end_factor(const attend_args &a, uint32_t head, float top, float sum) {
  float scale = value_scale(a, head / a.group);
  return a.found != NULL ? scale : finish_softmax(top, sum, a.sinks, head) * scale;
}

/* Elements [c, c + N) of a head, times that. */
template <int N>
OCT_DEVICE void
put_elements(const attend_args &a, uint32_t token, uint32_t head, uint32_t c, const float (&x)[N]) {
  size_t row;
  uint32_t own;
  find_member(a, token, head, &row, &own);
  if (a.found == NULL) {
    store_floats<bf16, N>((bf16 *)a.out + row * a.out_stride + (size_t)own * a.value_width + c, x);
    return;
  }
  float *to = a.found + (row * a.own_heads + own) * (a.value_width + 2) + 2;
#pragma unroll
  for (int i = 0; i < N; i++)
    to[c + i] = x[i];
}

/* Top and sum of a head, where they are wanted. */
OCT_DEVICE void
put_ends(const attend_args &a, uint32_t token, uint32_t head, float top, float sum) {
  size_t row;
  uint32_t own;
  if (a.found == NULL)
    return;
  find_member(a, token, head, &row, &own);
  float *to = a.found + (row * a.own_heads + own) * (a.value_width + 2);
  to[0] = top / OCT_LOG2E;
  to[1] = sum;
}

/* What a head finds where there is nothing to see; all threads. */
OCT_DEVICE void
put_nothing(const attend_args &a, uint32_t token, uint32_t head) {
  for (uint32_t c = threadIdx.x; c < a.value_width; c += blockDim.x)
    put_elements<1>(a, token, head, c, {0});
  if (threadIdx.x == 0)
    put_ends(a, token, head, -INFINITY, 0);
}

/* ---------------------------------------------------------------- tiles of a batch */

/* Tiles of ROWS rows (query tokens by the heads of a group) that a sequence has. */
template <uint32_t ROWS>
OCT_DEVICE uint32_t
tiles_of(const attend_args &a, uint32_t seq) {
  uint32_t n = a.batch.seq_first[seq + 1] - a.batch.seq_first[seq];
  return (n * a.group + ROWS - 1) / ROWS;
}

/* The sequence that has tile *tile of all, and the tile's number in it; false: there is none. Every
 * warp finds it for itself. */
template <uint32_t ROWS>
OCT_DEVICE bool
find_tile(const attend_args &a, uint32_t *tile, uint32_t *seq) {
  uint32_t lane = threadIdx.x % 32, left = *tile;
  for (uint32_t base = 0; base < a.n_seqs; base += 32) {
    uint32_t s = base + lane, mine = s < a.n_seqs ? tiles_of<ROWS>(a, a.first_seq + s) : 0,
             until = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      uint32_t before = __shfl_up_sync(0xffffffffu, until, d);
      until += lane >= d ? before : 0;
    }
    uint32_t who = __ballot_sync(0xffffffffu, left < until);
    if (who != 0) {
      int first = __ffs(who) - 1;
      *tile = left - __shfl_sync(0xffffffffu, until - mine, first);
      *seq = a.first_seq + base + first;
      return true;
    }
    left -= __shfl_sync(0xffffffffu, until, 31);
  }
  return false;
}

/* ---------------------------------------------------------------- matrix instructions */

/* d += a b: 16 x 16 by 16 x 8; H: bf16 or half. */
template <typename H>
OCT_DEVICE void
mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (sizeof(H) == 2 && __is_same(H, bf16))
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <typename H>
OCT_DEVICE uint32_t
pack(float low, float high) {
  if constexpr (__is_same(H, bf16)) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
  } else {
    __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
  }
}

/* Four 8 x 8 matrices from shared memory; lane i gives row i % 8 of matrix i / 8. */
OCT_DEVICE void
load_matrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from));
}

/* The same, each transposed. */
OCT_DEVICE void
load_transposed(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from));
}

/* Transposes an 8 x 8 matrix of 16-bit elements that a warp holds. */
OCT_DEVICE uint32_t
transpose8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

OCT_DEVICE uint32_t
multiply_pairs(uint32_t x, uint32_t y) {
  __nv_bfloat162 z =
      __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&x), *reinterpret_cast<__nv_bfloat162 *>(&y));
  return *reinterpret_cast<uint32_t *>(&z);
}

/* Four e4m3 as pairs of bf16: exponent and mantissa moved into place are the value times 2^-120,
 * subnormals too. */
OCT_DEVICE void
expand_fp8(uint32_t codes, uint32_t *pairs) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t t = __byte_perm(codes, 0, i == 0 ? 0x1404 : 0x3424);
    pairs[i] = multiply_pairs((t & 0x80008000u) | ((t & 0x7f007f00u) >> 4), 0x7b807b80u);
  }
}

/* Two e4m3 of the low half of x to two halves. */
OCT_DEVICE uint32_t
halves_of(uint16_t x) {
  __half2_raw v = __nv_cvt_fp8x2_to_halfraw2(x, __NV_E4M3);
  return *reinterpret_cast<uint32_t *>(&v);
}

/* ---------------------------------------------------------------- the kernels' launchers */

int oct_attend_plain(const oct_cuda_queue *queue, oct_cuda_type type, const attend_args &args);
bool oct_attend_decode_can(const attend_args &args, oct_cuda_type type);
bool oct_attend_decode_can_store(const attend_args &args, const oct_cuda_rope_store &store);
/* Query heads of a block at most; blocks that a multiprocessor runs at a time. */
uint32_t oct_attend_decode_heads(const attend_args &args);
uint32_t oct_attend_decode_blocks(const attend_args &args);
int oct_attend_decode(const oct_cuda_queue *queue, const attend_args &args);
/* Shares contexts of at most `context` keys of a.n_seqs sequences out over blocks; bytes of a
 * workspace that the parts need. */
void oct_attend_share_out(const oct_cuda_queue *queue, uint32_t context, attend_args *a);
size_t oct_attend_decode_bytes(const attend_args &args);
/* What is used of so many bytes; SIZE_MAX: they do not do. */
size_t oct_attend_decode_used(const attend_args &args, size_t workspace_bytes);
/* With the workspace: UNSUPPORTED when it does not do. */
int oct_attend_decode_with(const oct_cuda_queue *queue, const attend_args &args, void *workspace,
                           size_t workspace_bytes);
/* Expanded latents of 128 + 64 and 128. */
bool oct_mla_hopper_can(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *call);
int oct_mla_hopper(const oct_cuda_queue *queue, const oct_cuda_mla_expanded *call);
/* Latents of 512 + 64 in bf16. */
bool oct_attend_latent_can(const oct_cuda_queue *queue, const attend_args &args,
                           oct_cuda_type type);
int oct_attend_latent(const oct_cuda_queue *queue, const attend_args &args);
/* Which kernel attends to a part of each context (args.visible is set), of at most `context` keys;
 * PLAIN: none. Bytes of a workspace that do for it; what it uses of so many, SIZE_MAX: they do not
 * do. */
oct_cuda_attention_path oct_latent_part_path(const oct_cuda_queue *queue, const attend_args &args,
                                             oct_cuda_type type, oct_cuda_attention_path wanted);
size_t oct_latent_part_bytes(const oct_cuda_queue *queue, const attend_args &args,
                             uint32_t context);
size_t oct_latent_part_used(const oct_cuda_queue *queue, const attend_args &args,
                            oct_cuda_attention_path path, uint32_t context, size_t workspace_bytes);
int oct_latent_part(const oct_cuda_queue *queue, const attend_args &args,
                    oct_cuda_attention_path path, uint32_t context, void *workspace,
                    size_t workspace_bytes);
/* Hopper's: head sizes 64 and 128. */
bool oct_attend_hopper_can(const oct_cuda_queue *queue, const attend_args &args,
                           oct_cuda_type type);
/* With n_splits > 1: parts, in args.partial of so many bytes; UNSUPPORTED: they do not do. */
int oct_attend_hopper(const oct_cuda_queue *queue, const attend_args &args, size_t bytes);
/* What parts would like to have, which grows with tokens, their runs and contexts; what a launch
 * uses of a whole workspace, SIZE_MAX: it does not do. */
size_t oct_attend_hopper_bytes(const attend_args &args);
size_t oct_attend_hopper_used(const attend_args &args, size_t workspace_bytes);
/* Bytes that oct_attend_gather() needs, 0 = it does not pay: keys and values go to larger pages
 * there, which *args then has instead. */
size_t oct_attend_gather_bytes(const attend_args &args, uint32_t max_context);
int oct_attend_gather(const oct_cuda_queue *queue, attend_args *args, uint32_t max_context,
                      void *room);
bool oct_attend_prefill_can(const attend_args &args, oct_cuda_type type);
int oct_attend_prefill(const oct_cuda_queue *queue, const attend_args &args);

#endif
