#include "engine/text/error.h"

G_DEFINE_QUARK(oct - text - error, oct_text_error)
