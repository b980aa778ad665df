/* Delta attention in chunks: records of chunks into states, one after another.
 *
 * A warp has 16 value columns of a head's state, transposed, in the registers of a sum of products:
 * rows are columns of the state, its columns are keys. So packed it is the left side of what reads
 * the state, what that gives is the left side of what follows, and so on round the loop: no value
 * passes through shared memory, and no warp waits for another. One warp more brings records, some
 * chunks ahead. */
#include "kernels/cuda/kda-chunk.cuh"

enum { BEFORE = KDA_TAPS - 1, TILES = KDA_WIDTH / 8 };

template <int P> struct take_room {
  static constexpr uint32_t n = 4 / P;
  chunk_record<P> stages[n];
  uint64_t full[n], empty[n];
};

/* What a warp works on. */
struct place {
  uint32_t head, column; /* first of 16, in the head */
};

/* tile i, keys 8 i to 8 i + 7: [0], [1]: column g, keys 2 t and 2 t + 1; [2], [3]: column g + 8. */
typedef float state_tiles[TILES][4];

OCT_DEVICE void
read_state(const float *home, const place &p, bool fresh, state_tiles &s) {
  uint32_t lane = threadIdx.x % 32, key = lane % 4 * 2, column = p.column + lane / 4;
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int k = 0; k < 4; k++)
      s[i][k] = fresh ? 0 : home[(8 * i + key + k % 2) * KDA_WIDTH + column + k / 2 * 8];
}

OCT_DEVICE void
write_state(float *home, const place &p, const state_tiles &s) {
  uint32_t lane = threadIdx.x % 32, key = lane % 4 * 2, column = p.column + lane / 4;
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int k = 0; k < 4; k++)
      home[(8 * i + key + k % 2) * KDA_WIDTH + column + k / 2 * 8] = s[i][k];
}

/* A sum's two tiles of 8 tokens as the left side of a product over these tokens. */
template <int P>
OCT_DEVICE void
pack_left(const float (&x)[4], const float (&y)[4], uint32_t (&a)[P][4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float(&from)[4] = i < 2 ? x : y;
    uint32_t parts[P];
    split_pair(from[i % 2 * 2], from[i % 2 * 2 + 1], parts);
#pragma unroll
    for (int p = 0; p < P; p++)
      a[p][i] = parts[p];
  }
}

/* Two tiles: d += a b for the part at `from` of b, which is number `part`. */
template <int P>
OCT_DEVICE void
multiply_part(const uint32_t (&a)[P][4], int part, uint32_t from, float (&d)[2][4]) {
  uint32_t b[4];
  load_matrices(b, from);
#pragma unroll
  for (int p = 0; p + part < 2 && p < P; p++) {
    mma<bf16>(d[0], a[p][0], a[p][1], a[p][2], a[p][3], b[0], b[1]);
    mma<bf16>(d[1], a[p][0], a[p][1], a[p][2], a[p][3], b[2], b[3]);
  }
}

/* d = rows of the state times rows of the chunk, [16 columns, 16 tokens]: two sums side by side, as
 * a product waits for the one that it adds to. */
template <int P>
OCT_DEVICE void
multiply_state(const uint32_t (&state)[TILES / 2][P][4], const chunk_rows (&rows)[P],
               float (&d)[2][4]) {
  float odd[2][4] = {};
#pragma unroll
  for (int i = 0; i < TILES / 2; i++)
#pragma unroll
    for (int part = P - 1; part >= 0; part--)
      multiply_part(state[i], part, matrix_address(rows[part], 2 * i, false), i % 2 == 0 ? d : odd);
#pragma unroll
  for (int i = 0; i < 8; i++)
    d[i / 4][i % 4] += odd[i / 4][i % 4];
}

/* d += x times the transposed square. */
template <int P>
OCT_DEVICE void
multiply_square(const uint32_t (&x)[P][4], const chunk_pair &square, float (&d)[2][4]) {
#pragma unroll
  for (int part = 1; part >= 0; part--)
    multiply_part(x, part, matrix_address(square[part]), d);
}

/* x = v - x */
template <int P>
OCT_DEVICE void
subtract_from_values(const chunk_rows (&v)[P], const place &p, float (&x)[2][4]) {
#pragma unroll
  for (int part = 0; part < P; part++) {
    uint32_t b[4];
    load_transposed(b, matrix_address(v[part], p.column / 8, false));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float2 pair = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&b[i]));
      float(&of)[4] = x[i / 2];
      of[i % 2 * 2] = pair.x - (part == 0 ? of[i % 2 * 2] : -of[i % 2 * 2]);
      of[i % 2 * 2 + 1] = pair.y - (part == 0 ? of[i % 2 * 2 + 1] : -of[i % 2 * 2 + 1]);
    }
  }
}

/* The state takes in what changes. */
template <int P>
OCT_DEVICE void
update_state(const chunk_record<P> &r, const uint32_t (&u)[P][4], state_tiles &s) {
  uint32_t key = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < TILES; i += 2) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      float2 decay = *reinterpret_cast<const float2 *>(&r.decay[8 * (i + k) + key]);
      float(&d)[4] = s[i + k];
      d[0] *= decay.x;
      d[1] *= decay.y;
      d[2] *= decay.x;
      d[3] *= decay.y;
    }
#pragma unroll
    for (int part = P - 1; part >= 0; part--) {
      uint32_t b[4];
      load_transposed(b, matrix_address(r.k_last[part], i, true));
#pragma unroll
      for (int p = 0; p + part < 2 && p < P; p++) {
        mma<bf16>(s[i], u[p][0], u[p][1], u[p][2], u[p][3], b[0], b[1]);
        mma<bf16>(s[i + 1], u[p][0], u[p][1], u[p][2], u[p][3], b[2], b[3]);
      }
    }
  }
}

/* out: row of the chunk's first token, of this head. */
OCT_DEVICE void
write_outputs(const float (&o)[2][4], const place &p, uint32_t n, bf16 *out, size_t stride) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int k = 0; k < 2; k++) {
      uint32_t pair = transpose8(pack<bf16>(o[i][2 * k], o[i][2 * k + 1]));
      uint32_t t = 8 * i + lane / 4;
      if (t < n)
        *reinterpret_cast<uint32_t *>(out + t * stride + p.column + 8 * k + lane % 4 * 2) = pair;
    }
}

OCT_DEVICE void
write_outputs(const float (&o)[2][4], const place &p, uint32_t n, float *out, size_t stride) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      uint32_t t = 8 * i + lane % 4 * 2 + k % 2;
      if (t < n)
        out[t * stride + p.column + lane / 4 + k / 2 * 8] = o[i][k];
    }
}

template <typename T, int P>
OCT_DEVICE void
take_chunk(const chunk_record<P> &r, const place &p, uint32_t n, T *out, size_t stride,
           state_tiles &s) {
  uint32_t state[TILES / 2][P][4], left[P][4];
#pragma unroll
  for (int i = 0; i < TILES / 2; i++)
    pack_left(s[2 * i], s[2 * i + 1], state[i]);
  float x[2][4] = {}, u[2][4] = {}, o[2][4] = {};
  multiply_state(state, r.k, x);
  subtract_from_values(r.v, p, x);
  pack_left(x[0], x[1], left);
  multiply_square(left, r.t, u);
  multiply_state(state, r.q, o);
  pack_left(u[0], u[1], left);
  update_state(r, left, s);
  multiply_square(left, r.m, o);
  write_outputs(o, p, n, out, stride);
}

/* The last inputs of the convolutions, of this block's channels. */
template <typename T, typename C, int WARPS>
OCT_DEVICE void
keep_inputs(const oct_cuda_kda &a, C *conv, const chunk_run &run, const place &p, bool fresh) {
  size_t channels = (size_t)a.kda.n_heads * KDA_WIDTH;
  constexpr uint32_t COLUMNS = 16 * WARPS;
  uint32_t first = p.column / COLUMNS * COLUMNS;
  for (uint32_t i = threadIdx.x; i < 3 * COLUMNS; i += 32 * WARPS) {
    uint32_t which = i / COLUMNS;
    size_t c = (size_t)p.head * KDA_WIDTH + first + i % COLUMNS;
    const T *x = (const T *)(which == 0 ? a.q : which == 1 ? a.k : a.v) + c;
    size_t stride = which == 0 ? a.q_stride : which == 1 ? a.k_stride : a.v_stride;
    C *kept = conv + which * BEFORE * channels + c;
    float last[BEFORE];
#pragma unroll
    for (int t = 0; t < BEFORE; t++) {
      uint32_t at = run.n_tokens + t; /* in the inputs before and of this run */
      if (at >= BEFORE)
        last[t] = to_float(x[(size_t)(run.token + at - BEFORE) * stride]);
      else
        last[t] = fresh ? 0 : to_float(kept[at * channels]);
    }
#pragma unroll
    for (int t = 0; t < BEFORE; t++)
      kept[t * channels] = from_float<C>(last[t]);
  }
}

/* The warp that brings records [first, end) of a head. */
template <int P>
OCT_DEVICE void
bring_records(take_room<P> &room, const chunk_record<P> *records, uint32_t heads, uint32_t first,
              uint32_t end) {
  constexpr uint32_t n = take_room<P>::n;
  if (threadIdx.x % 32 != 0)
    return;
  for (uint32_t i = 0; i < end - first; i++) {
    uint32_t stage = i % n, full = shared_address(&room.full[stage]);
    if (i >= n)
      barrier_wait(shared_address(&room.empty[stage]), (i / n - 1) % 2);
    barrier_expect(full, sizeof *records);
    copy_bulk(shared_address(&room.stages[stage]), records + (size_t)(first + i) * heads,
              sizeof *records, full);
  }
}

template <typename T, typename C, int WARPS>
static __global__ void
__launch_bounds__(32 * (WARPS + 1), sizeof(T) == sizeof(bf16) ? 2 : 1)
    kda_take(oct_cuda_kda a, oct_cuda_batch b, chunk_pass pass) {
  extern __shared__ uint4 shared[];
  constexpr int P = parts_of<T>;
  constexpr uint32_t n = take_room<P>::n;
  take_room<P> &room = *reinterpret_cast<take_room<P> *>(shared);
  uint32_t seq = pass.first_seq + blockIdx.y, warp = threadIdx.x / 32;
  place p = {blockIdx.x * WARPS / 8, blockIdx.x * WARPS % 8 * 16 + warp * 16};
  admit_successor();
  if (threadIdx.x == 0)
    for (uint32_t i = 0; i < n; i++) {
      barrier_init(shared_address(&room.full[i]), 1);
      barrier_init(shared_address(&room.empty[i]), arrivals_of(WARPS));
    }
  fence_async();
  __syncthreads();
  await_predecessors();
  chunk_run run = run_of(b, pass, seq);
  uint32_t all = (run.n_tokens + CHUNK - 1) / CHUNK;
  uint32_t first = max(run.first, pass.first), end = min(run.first + all, pass.end);
  if (first >= end)
    return;
  if (warp == WARPS) {
    bring_records(room, (const chunk_record<P> *)a.workspace + p.head, a.kda.n_heads,
                  first - pass.first, end - pass.first);
    return;
  }
  size_t slot = kda_slot(a, b, seq);
  bool fresh = b.seq_start[seq] == 0;
  float *home = a.states + slot * a.state_stride + (size_t)p.head * KDA_WIDTH * KDA_WIDTH;
  T *out = (T *)a.out + (size_t)p.head * KDA_WIDTH;
  state_tiles s;
  read_state(home, p, fresh && first == run.first, s);
  for (uint32_t i = 0; i < end - first; i++) {
    uint32_t stage = i % n, token = (first - run.first + i) * CHUNK;
    barrier_wait(shared_address(&room.full[stage]), i / n % 2);
    take_chunk(room.stages[stage], p, min(CHUNK, run.n_tokens - token),
               out + (run.token + token) * a.out_stride, a.out_stride, s);
    arrive_by_warp(shared_address(&room.empty[stage]));
  }
  write_state(home, p, s);
  if (end == run.first + all)
    keep_inputs<T, C, WARPS>(a, (C *)a.conv + slot * a.conv_stride, run, p, fresh);
}

template <typename T, typename C, int WARPS>
static int
launch_warps(const oct_cuda_queue *queue, const oct_cuda_kda *call, const chunk_pass *pass) {
  dim3 grid(call->kda.n_heads * 8 / WARPS, call->batch->n_seqs - pass->first_seq);
  return launch_large(queue, kda_take<T, C, WARPS>, grid, dim3(32 * (WARPS + 1)),
                      sizeof(take_room<parts_of<T>>), *call, *call->batch, *pass);
}

/* Warps of a block read records from the same shared memory, which takes them half of the time:
 * where there are few heads, they are spread over more multiprocessors, though each brings records
 * of its own. */
template <typename T, typename C>
static int
launch_take(const oct_cuda_queue *queue, const oct_cuda_kda *call, const chunk_pass *pass) {
  uint32_t units = call->kda.n_heads * (call->batch->n_seqs - pass->first_seq);
  return 4 * units <= queue->sm_count ? launch_warps<T, C, 2>(queue, call, pass)
                                      : launch_warps<T, C, 4>(queue, call, pass);
}

int
oct_kda_take_chunks(const oct_cuda_queue *queue, const oct_cuda_kda *call, const chunk_pass *pass) {
  return OCT_BY_TYPE(call->type, T,
                     call->conv_type == OCT_CUDA_F32    ? launch_take<T, float>(queue, call, pass)
                     : call->conv_type == OCT_CUDA_BF16 ? launch_take<T, bf16>(queue, call, pass)
                                                        : OCT_CUDA_UNSUPPORTED);
}
