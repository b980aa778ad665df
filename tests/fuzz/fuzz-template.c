/* Fuzz target: any bytes as a chat template, rendered over a small conversation with little fuel.
 * It ends, with an error of the domain or a prompt whose marks fit. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"
#include "engine/text/jinja.h"
#include "tests/fuzz/replay.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static json_t *outside;
  if (outside == NULL)
    outside = json_loads("{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u00e9</b> c\"},"
                         "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
                         "\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,null]}}}]}],"
                         "\"tools\":[{\"type\":\"function\"}],\"add_generation_prompt\":true}",
                         0, NULL);
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_template) compiled =
      oct_template_new(size > 0 ? (const char *)data : "", size, &error);
  oct_assert((compiled == NULL) == (error != NULL));
  if (compiled == NULL)
    return 0;
  g_autoptr(oct_prompt) prompt = oct_prompt_new();
  oct_template_input input = {.outside = outside, .fuel = 20000};
  gboolean ok = oct_template_render(compiled, &input, prompt, &error);
  oct_assert(ok == (error == NULL) && prompt->text->len == prompt->marks->len);
  oct_assert(error == NULL || error->domain == OCT_TEXT_ERROR);
  return 0;
}
