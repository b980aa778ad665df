/* The record backend: writes every call and every event of a world to a file, and plays such a file
 * back as a world of its own. A bug report is a recording; a change that should change nothing is
 * checked by replaying one.
 *
 * The file is a header and flat entries, each with a checksum (SipHash) over its bytes, in the
 * order of the calls. A torn or damaged file plays up to the first bad entry and says where that
 * is.
 *
 * The player answers from the file at once, whatever the clock was, and compares each call with the
 * recorded one, byte by byte. At the first difference it ends the world: calls are refused, next()
 * gives a FATAL fault, and oct_replay_difference() tells the two apart in full.
 */
#ifndef OCT_BACKENDS_RECORD_H
#define OCT_BACKENDS_RECORD_H

#include "engine/backend.h"

typedef struct oct_record_options {
  const char *path;         /* the recording, created or emptied; NULL: none */
  gboolean flush;           /* each entry is written at once, so that a crash loses none */
  const char *steps_path;   /* likewise the step log (step-log.h); NULL: none. With one, nothing is
                               fast-forwarded, so that every step has its line */
  const char *routing_path; /* likewise the counts of experts (routing-log.h), for which results
                               report them whether asked to or not; NULL: none */
} oct_record_options;

/* Wraps `inner`, which it takes, also when it fails. At least one of the files is wanted. NULL with
 * *error (CONFIG). */
oct_world *oct_record_world_new(oct_world *inner, const oct_record_options *options,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* FALSE with *error when some entry could not be written; the world itself goes on regardless. */
gboolean oct_record_world_check(const oct_world *world, GError **error);

/* A world that answers from the file. NULL with *error (CONFIG: no such file; RECORD: not a
 * recording). */
oct_world *oct_replay_world_new(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The first difference, or what is wrong with the file; NULL while there is none. Borrowed. */
const char *oct_replay_difference(const oct_world *world);
/* Calls answered so far, and whether the recording is used up. */
guint64 oct_replay_calls(const oct_world *world, gboolean *at_end);

#endif
