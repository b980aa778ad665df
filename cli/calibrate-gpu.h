/* The part of octet calibrate that needs a GPU: what the card is, the machine round it, and the
 * backend's own kernels, timed one by one. Built everywhere; without CUDA it says so.
 */
#ifndef OCT_CLI_CALIBRATE_GPU_H
#define OCT_CLI_CALIBRATE_GPU_H

#include "sim/calibrate/calibration.h"

typedef struct oct_calibrate_card {
  char *name;       /* "NVIDIA H200"; owned */
  char *driver;     /* "580.159.04", or the CUDA version that it knows; owned */
  guint count;      /* GPUs there are */
  gint *numa_nodes; /* [count]; -1: the machine does not say; owned */
} oct_calibrate_card;
void oct_calibrate_card_clear(oct_calibrate_card *card);

/* FALSE with *error: built without CUDA, no driver, no GPU. */
gboolean oct_calibrate_card_read(oct_calibrate_card *card,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Called before each kind of measurement, with what it is. */
typedef void (*oct_calibrate_told)(void *user, const char *what);

/* Measures the first GPU, its machine and the tables' points on it: values go into `calibration`,
 * times into `tables` (oct_timed). `gpus`: how many the profile is of; the second is the peer
 * that copies go to; cache_bytes: room for the keys and values of a decode; hbm_peak: bytes/s that
 * fractions are of. Ends the program when the device fails. */
void oct_calibrate_gpu(oct_calibration *calibration, GArray *tables, guint gpus, double cache_bytes,
                       double hbm_peak, oct_calibrate_told told, void *user);

#endif
