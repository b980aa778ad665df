#include "client/failure.h"

#include "engine/base/assert.h"

const char *
oct_failure_name(oct_failure failure) {
  static const char *const names[OCT_FAILURE_COUNT] = {
      [OCT_FAILURE_NONE] = "none",
      [OCT_FAILURE_RESOLVE] = "unknown host",
      [OCT_FAILURE_REFUSED] = "connection refused",
      [OCT_FAILURE_CONNECT] = "no connection",
      [OCT_FAILURE_CONNECT_TIMEOUT] = "connection timed out",
      [OCT_FAILURE_TLS] = "TLS failed",
      [OCT_FAILURE_EMPTY] = "closed without an answer",
      [OCT_FAILURE_RESET] = "connection reset",
      [OCT_FAILURE_TIMEOUT] = "timed out",
      [OCT_FAILURE_CANCELLED] = "cancelled",
      [OCT_FAILURE_STATUS] = "status",
      [OCT_FAILURE_PROTOCOL] = "not HTTP",
      [OCT_FAILURE_TYPE] = "not a stream",
      [OCT_FAILURE_TRUNCATED] = "cut short",
      [OCT_FAILURE_CONTENT] = "not understood",
      [OCT_FAILURE_ERROR] = "error in the stream",
      [OCT_FAILURE_OTHER] = "other",
  };
  oct_assert(failure < OCT_FAILURE_COUNT);
  return names[failure];
}
