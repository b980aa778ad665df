/* The batch of a step on the device, from what the host knows and what the slots hold; and what
 * sampling gives back to the slots. */
#include "kernels/cuda/common.cuh"

/* The device's clock, which runs through all kernels: ns. */
OCT_DEVICE void
put_stamp(uint64_t *stamp) {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  *stamp = now;
}

/* ---------------------------------------------------------------- before the step */

/* One thread per sequence, then per token; one block, so that nothing else has to wait. */
static __global__ void
prepare_sequences(oct_cuda_batch b, const oct_cuda_seq *seqs, const uint32_t *count,
                  oct_cuda_slots slots, uint64_t *stamp) {
  admit_successor();
  await_predecessors();
  uint32_t s = blockIdx.x * blockDim.x + threadIdx.x, n = *count;
  if (s == 0 && stamp != NULL)
    put_stamp(stamp);
  if (s >= b.n_seqs)
    return;
  if (s >= n) {
    uint32_t end = n > 0 ? seqs[n - 1].first + seqs[n - 1].n_tokens : 0;
    if (s == 0)
      b.seq_first[0] = 0;
    b.seq_first[s + 1] = end;
    b.seq_start[s] = 0;
    b.seq_slot[s] = 0;
    return;
  }
  oct_cuda_seq q = seqs[s];
  if (s == 0)
    b.seq_first[0] = 0;
  b.seq_first[s + 1] = q.first + q.n_tokens;
  b.seq_start[s] = q.position == OCT_CUDA_NONE ? slots.length[q.slot] : q.position;
  b.seq_slot[s] = q.slot;
}

static __global__ void
prepare_tokens(oct_cuda_batch b, const oct_cuda_seq *seqs, const uint32_t *count,
               const uint32_t *ids, oct_cuda_slots slots) {
  admit_successor();
  await_predecessors();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, n = *count;
  if (i >= b.n_tokens)
    return;
  /* The last sequence that begins at or before token i: those of no tokens are passed over. */
  uint32_t low = 0, high = n;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (seqs[middle].first <= i)
      low = middle + 1;
    else
      high = middle;
  }
  uint32_t s = low > 0 ? low - 1 : 0;
  if (n == 0 || i < seqs[s].first || i - seqs[s].first >= seqs[s].n_tokens) {
    b.ids[i] = 0;
    b.token_position[i] = 0;
    b.token_seq[i] = OCT_CUDA_NONE;
    return;
  }
  oct_cuda_seq q = seqs[s];
  uint32_t at = i - q.first;
  uint32_t start = q.position == OCT_CUDA_NONE ? slots.length[q.slot] : q.position;
  b.token_seq[i] = s;
  b.token_position[i] = start + at;
  if (q.from_slot != 0)
    b.ids[i] = at == 0 ? slots.last_token[q.slot] : ids[q.ids + at - 1];
  else
    b.ids[i] = ids[q.ids + at];
}

int
oct_cuda_prepare_batch(const oct_cuda_queue *queue, const oct_cuda_prepare *call) {
  const oct_cuda_batch *b = call->batch;
  int error = OCT_CUDA_OK;
  if (b->n_seqs > 0)
    error = launch(queue, prepare_sequences, dim3(ceil_div(b->n_seqs, 128)), dim3(128), 0, *b,
                   call->seqs, call->count, call->slots, call->stamp);
  if (error == OCT_CUDA_OK && b->n_tokens > 0)
    error = launch(queue, prepare_tokens, dim3(ceil_div(b->n_tokens, 128)), dim3(128), 0, *b,
                   call->seqs, call->count, call->ids, call->slots);
  return error;
}

/* ---------------------------------------------------------------- after the step */

/* One thread per sequence. */
static __global__ void
accept(oct_cuda_batch b, const oct_cuda_sample_row *rows, const uint32_t *seq_rows,
       const uint32_t *tokens, uint32_t vocab, uint32_t *accepted, oct_cuda_slots slots,
       uint64_t *stamp) {
  admit_successor();
  await_predecessors();
  uint32_t s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s >= b.n_seqs)
    return;
  uint32_t first = seq_rows[s], end = seq_rows[s + 1], n = 0;
  for (uint32_t r = first; r < end; r++) {
    uint32_t token = tokens[r];
    if (token == OCT_REF_NO_TOKEN)
      break;
    n++;
    if (rows[r].counts != NULL && token < vocab)
      rows[r].counts[token]++;
    slots.last_token[b.seq_slot[s]] = token;
    slots.length[b.seq_slot[s]] = b.token_position[rows[r].token] + 1;
    if (r + 1 < end && b.ids[rows[r].token + 1] != token)
      break;
  }
  accepted[s] = n;
  if (s == 0 && stamp != NULL)
    put_stamp(stamp);
}

int
oct_cuda_accept_tokens(const oct_cuda_queue *queue, const oct_cuda_accept *call) {
  const oct_cuda_batch *b = call->batch;
  if (b->n_seqs == 0)
    return OCT_CUDA_OK;
  return launch(queue, accept, dim3(ceil_div(b->n_seqs, 64)), dim3(64), 0, *b, call->rows,
                call->seq_rows, call->tokens, call->vocab, call->accepted, call->slots,
                call->stamp);
}
