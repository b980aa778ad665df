/* bench-cuda [--csv FILE] [--only TEXT]
 *     [--family attention|delta|matmul|choices|codes|small|hybrid|step|copies|collectives]
 * The kernels' times on this machine's first GPU, and of sums over all of them. */
#include "kernels/bench/bench.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  void (*run)(bench *b);
} families[] = {{"attention", bench_attention},
                {"delta", bench_delta},
                {"matmul", bench_matmul},
                {"choices", bench_choices},
                {"codes", bench_codes},
                {"small", bench_small},
                {"hybrid", bench_hybrid},
                {"step", bench_step},
                {"copies", bench_host_copies},
                {"collectives", bench_collectives}};

static const char *
next_argument(int argc, char **argv, int *i) {
  if (*i + 1 < argc)
    return argv[++*i];
  fprintf(stderr, "bench-cuda: %s wants a value\n", argv[*i]);
  exit(2);
}

int
main(int argc, char **argv) {
  bench b = {0};
  const char *family = NULL;
  int n = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--csv") == 0) {
      const char *name = next_argument(argc, argv, &i);
      b.csv = fopen(name, "w");
      if (b.csv == NULL) {
        perror(name);
        return 1;
      }
      fprintf(b.csv, "name,us,bytes,flops,fraction,limit\n");
    } else if (strcmp(argv[i], "--family") == 0) {
      family = next_argument(argc, argv, &i);
    } else if (strcmp(argv[i], "--only") == 0) {
      b.only = next_argument(argc, argv, &i);
    } else {
      fprintf(stderr, "usage: bench-cuda [--csv FILE] [--family NAME] [--only TEXT]\n");
      return 2;
    }
  }
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
    printf("bench-cuda: no GPU\n");
    return 0;
  }
  bench_open(&b);
  if (b.blas == NULL)
    printf("cuBLASLt cannot be used: its products are left out\n");
  bench_ceilings(&b);
  for (unsigned i = 0; i < sizeof families / sizeof *families; i++)
    if (family == NULL || strcmp(family, families[i].name) == 0) {
      families[i].run(&b);
      bench_free_all();
    }
  bench_close(&b);
  if (b.csv != NULL)
    fclose(b.csv);
  return 0;
}
