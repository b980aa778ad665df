#include "engine/base/error.h"

G_DEFINE_QUARK(oct - base - error, oct_base_error)
