/* Log probabilities of sampled tokens, and of the likeliest others. */
#include "kernels/cuda/sample.cuh"

#define LOGPROBS_MAX 128

/* Bits that order as the numbers do, negative ones too. */
OCT_DEVICE uint32_t
ordered(float x) {
  uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

OCT_DEVICE float
unordered(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Sorts n found candidates into out by counting who comes before each. */
OCT_DEVICE void
put_in_order(const oct_token_logprob *found, uint32_t n, oct_token_logprob *out) {
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    uint32_t rank = 0;
    for (uint32_t k = 0; k < n; k++)
      rank += found[k].logprob > found[i].logprob ||
              (found[k].logprob == found[i].logprob && found[k].token < found[i].token);
    out[rank] = found[i];
  }
}

static __global__ void
__launch_bounds__(THREADS) logprob_rows(oct_cuda_logprobs a) {
  __shared__ sample_room room;
  __shared__ oct_token_logprob found[LOGPROBS_MAX];
  __shared__ uint32_t n_found;
  admit_successor();
  await_predecessors();
  const float *logits = a.logits + blockIdx.x * a.stride;
  oct_token_logprob *out = a.out + (size_t)blockIdx.x * (1 + a.most);
  uint32_t token = a.tokens[blockIdx.x], wanted = min(a.rows[blockIdx.x].n_logprobs, a.most);
  if (a.rows[blockIdx.x].seq == OCT_CUDA_NONE || token >= a.vocab)
    return;
  best b = {-INFINITY, OCT_CUDA_NONE};
  for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS)
    if (logits[i] > b.logit)
      b = {logits[i], i};
  b = block_best(room, b);
  double mine = 0, sum;
  for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS)
    mine += expf(logits[i] - b.logit);
  scan_masses(room, mine, &sum);
  float shift = b.logit + (float)log(sum);
  if (threadIdx.x == 0) {
    out[0] = {token, logits[token] - shift};
    n_found = 0;
  }
  __syncthreads();
  if (wanted == 0)
    return;
  auto key = [logits, shift, token](uint32_t i, uint32_t *k) {
    *k = ordered(logits[i] - shift);
    return i != token;
  };
  auto mass = [](uint32_t) { return 0.0; };
  place at = find_place(room, a.vocab, key, mass, GOAL_COUNT, (double)wanted);
  for (uint32_t i = threadIdx.x; i < a.vocab; i += THREADS) {
    uint32_t k;
    if (key(i, &k) && k > at.key)
      found[atomicAdd(&n_found, 1u)] = {i, unordered(k)};
  }
  __syncthreads();
  for (uint32_t nth = 1; at.before + nth <= wanted; nth++) {
    uint32_t tie = find_tie(room, a.vocab, key, at.key, nth);
    if (threadIdx.x == 0)
      found[at.before + nth - 1] = {tie, unordered(at.key)};
    __syncthreads();
  }
  put_in_order(found, wanted, out + 1);
}

int
oct_cuda_logprobs_rows(const oct_cuda_queue *queue, const oct_cuda_logprobs *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (call->most > LOGPROBS_MAX || call->most >= call->vocab)
    return OCT_CUDA_UNSUPPORTED;
  return launch(queue, logprob_rows, dim3(call->n), dim3(THREADS), 0, *call);
}
