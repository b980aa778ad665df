/* The golden checkpoints on GPUs: in float32 and bfloat16, without graphs, and on layouts whose
 * ranks share a GPU where there are too few. */
#include "tests/backends/golden-engine.h"

#define WORLD_OF(name, text)                                                                       \
  .prefix = "/cuda/engine/" name, .usual = text, .slow = text, .real = text, .needs_gpu = TRUE
#define WORLD(name, text) WORLD_OF(name, text), .kimi_k3 = TRUE

/* In bfloat16 logits are off by up to 2 % of their size. */
#define BF16_MARGIN 0.08

static const golden_world worlds[] = {
    {WORLD("float32", "cuda:model=%s,dtype=float32"),
     .parallel =
         {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE}},
    {WORLD("float32-eager", "cuda:model=%s,dtype=float32"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .eager = TRUE},
    {WORLD("bfloat16", "cuda:model=%s,fixed_order=1"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .margin = BF16_MARGIN},
    {WORLD("bfloat16-any-order", "cuda:model=%s"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .margin = BF16_MARGIN, .loose = TRUE},
    {WORLD("bfloat16-any-order-tensor2", "cuda:model=%s,devices=2"),
     .parallel = {.tensor = 2, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .margin = BF16_MARGIN, .loose = TRUE},
    {WORLD("bfloat16-tensor2", "cuda:model=%s,fixed_order=1,devices=2"),
     .parallel = {.tensor = 2, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .margin = BF16_MARGIN, .loose_states = TRUE},
    {WORLD("float32-tensor2", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel =
         {.tensor = 2, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE}},
    {WORLD("float32-pipeline2", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel =
         {.tensor = 1, .pipeline = 2, .data = 1, .decode_context = 1, .shard_latent = TRUE}},
    {WORLD("float32-experts2", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel = {.tensor = 2,
                  .pipeline = 1,
                  .data = 1,
                  .decode_context = 1,
                  .expert_parallel = TRUE,
                  .shard_latent = TRUE}},
    {WORLD("float32-domains2-experts2", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel = {.tensor = 1,
                  .pipeline = 1,
                  .data = 2,
                  .decode_context = 1,
                  .expert_parallel = TRUE,
                  .shard_latent = TRUE}},
    {WORLD("float32-expanded", "cuda:model=%s,dtype=float32,expand=2,expand_keys=16"),
     .parallel =
         {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE}},
    {WORLD("float32-tensor2-expanded",
           "cuda:model=%s,dtype=float32,devices=2,expand=5,expand_keys=32"),
     .parallel =
         {.tensor = 2, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE}},
    {WORLD("float32-tensor2-whole-latents", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel = {.tensor = 2, .pipeline = 1, .data = 1, .decode_context = 1}},
    {WORLD("float32-tensor2-context2", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel =
         {.tensor = 2, .pipeline = 1, .data = 1, .decode_context = 2, .shard_latent = TRUE}},
    {WORLD("float32-tensor4-context2", "cuda:model=%s,dtype=float32,devices=4"),
     .parallel =
         {.tensor = 4, .pipeline = 1, .data = 1, .decode_context = 2, .shard_latent = TRUE}},
    {WORLD("float32-domains2-tensor2-experts4", "cuda:model=%s,dtype=float32,devices=4"),
     .parallel = {.tensor = 2,
                  .pipeline = 1,
                  .data = 2,
                  .decode_context = 1,
                  .expert_parallel = TRUE,
                  .shard_latent = TRUE}},
};

/* Part of the experts on the device, the rest where the step that needs them brings them from. */
static const golden_world slot_worlds[] = {
    {WORLD("float32-slots25", "cuda:model=%s,dtype=float32"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .expert_percent = 25},
    {WORLD("float32-slots50", "cuda:model=%s,dtype=float32"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .expert_percent = 50},
    {WORLD("float32-slots75", "cuda:model=%s,dtype=float32"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .expert_percent = 75},
    {WORLD("bfloat16-slots50", "cuda:model=%s,fixed_order=1"),
     .parallel = {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .margin = BF16_MARGIN, .expert_percent = 50},
    {WORLD("float32-pipeline2-slots50", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel = {.tensor = 1, .pipeline = 2, .data = 1, .decode_context = 1, .shard_latent = TRUE},
     .expert_percent = 50},
    {WORLD("float32-experts2-slots50", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel = {.tensor = 2,
                  .pipeline = 1,
                  .data = 1,
                  .decode_context = 1,
                  .expert_parallel = TRUE,
                  .shard_latent = TRUE},
     .expert_percent = 50},
    {WORLD("float32-domains2-experts2-slots50", "cuda:model=%s,dtype=float32,devices=2"),
     .parallel = {.tensor = 1,
                  .pipeline = 1,
                  .data = 2,
                  .decode_context = 1,
                  .expert_parallel = TRUE,
                  .shard_latent = TRUE},
     .expert_percent = 50},
};

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(worlds); i++)
    golden_engine_add(&worlds[i]);
  for (gsize i = 0; i < G_N_ELEMENTS(slot_worlds); i++)
    golden_engine_add(&slot_worlds[i]);
  return g_test_run();
}
