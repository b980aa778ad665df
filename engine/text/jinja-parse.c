/* Statements. Recursive descent; depth is limited. */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

void
oct_jparse_fail(oct_jparser *p, oct_text_error code, const char *what, const char *value) {
  if (p->failed)
    return;
  p->failed = TRUE;
  const char *advice = code == OCT_TEXT_ERROR_UNSUPPORTED
                           ? " is not supported; give another template with --chat-template"
                           : "";
  g_set_error(p->error, OCT_TEXT_ERROR, code, "chat template, line %u: %s '%s'%s", p->at->line,
              what, value, advice);
}

oct_jnode *
oct_jparse_node(oct_jparser *p, oct_jop op) {
  static oct_jnode nothing;
  oct_jnode *node =
      p->nodes < OCT_TEMPLATE_NODES_MAX ? oct_arena_alloc(p->arena, sizeof *node) : NULL;
  if (node == NULL) {
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "more nodes than the limit at", p->at->text);
    nothing = (oct_jnode){0};
    return &nothing;
  }
  p->nodes++;
  node->op = op;
  node->line = p->at->line;
  return node;
}

gboolean
oct_jparse_is(const oct_jparser *p, oct_jtoken_kind kind, const char *text) {
  return p->at->kind == kind && (text == NULL || strcmp(p->at->text, text) == 0);
}

gboolean
oct_jparse_accept(oct_jparser *p, oct_jtoken_kind kind, const char *text) {
  if (p->failed || !oct_jparse_is(p, kind, text))
    return FALSE;
  p->at++;
  return TRUE;
}

void
oct_jparse_expect(oct_jparser *p, oct_jtoken_kind kind, const char *text) {
  if (oct_jparse_accept(p, kind, text) || p->failed)
    return;
  g_autofree char *what =
      g_strdup_printf("expected %s instead of", text != NULL               ? text
                                                : kind == OCT_T_BLOCK_END  ? "%}"
                                                : kind == OCT_T_OUTPUT_END ? "}}"
                                                                           : "a name");
  oct_jparse_fail(p, OCT_TEXT_ERROR_FORMAT, what, p->at->text);
}

static oct_jnode *parse_body(oct_jparser *p, const char *const *ends, guint n_ends);

static const char *
parse_name(oct_jparser *p) {
  const char *name = p->at->text;
  oct_jparse_expect(p, OCT_T_NAME, NULL);
  return name;
}

/* if, from its condition on; at elif it goes on with another. */
static oct_jnode *
parse_if(oct_jparser *p) {
  static const char *const ends[] = {"elif", "else", "endif"};
  oct_jnode *first = oct_jparse_node(p, OCT_N_IF), *node = first;
  for (;;) {
    node->a = oct_jparse_expression(p, FALSE, TRUE);
    oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
    node->body = parse_body(p, ends, 3);
    if (p->failed || oct_jparse_accept(p, OCT_T_NAME, "endif"))
      return first;
    if (oct_jparse_accept(p, OCT_T_NAME, "else")) {
      oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
      node->other = parse_body(p, ends + 2, 1);
      oct_jparse_expect(p, OCT_T_NAME, "endif");
      return first;
    }
    oct_jparse_expect(p, OCT_T_NAME, "elif");
    node->other = oct_jparse_node(p, OCT_N_IF);
    node = node->other;
  }
}

static oct_jnode *
parse_for(oct_jparser *p) {
  static const char *const ends[] = {"else", "endfor"};
  oct_jnode *node = oct_jparse_node(p, OCT_N_FOR);
  node->a = oct_jparse_target(p, FALSE);
  oct_jparse_expect(p, OCT_T_NAME, "in");
  node->b = oct_jparse_expression(p, TRUE, FALSE);
  if (oct_jparse_accept(p, OCT_T_NAME, "if"))
    node->c = oct_jparse_expression(p, FALSE, TRUE);
  if (oct_jparse_is(p, OCT_T_NAME, "recursive"))
    oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "a for loop that is", "recursive");
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  node->body = parse_body(p, ends, 2);
  if (oct_jparse_accept(p, OCT_T_NAME, "else")) {
    oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
    node->other = parse_body(p, ends + 1, 1);
  }
  oct_jparse_expect(p, OCT_T_NAME, "endfor");
  return node;
}

static oct_jnode *
parse_set(oct_jparser *p) {
  static const char *const ends[] = {"endset"};
  oct_jnode *target = oct_jparse_target(p, TRUE);
  if (oct_jparse_accept(p, OCT_T_OPERATOR, "=")) {
    oct_jnode *node = oct_jparse_node(p, OCT_N_SET);
    node->a = target;
    node->b = oct_jparse_expression(p, TRUE, TRUE);
    return node;
  }
  oct_jnode *node = oct_jparse_node(p, OCT_N_SETBLOCK);
  node->a = target;
  if (oct_jparse_is(p, OCT_T_OPERATOR, "|"))
    node->b = oct_jparse_filters(p, oct_jparse_node(p, OCT_N_HOLE));
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  node->body = parse_body(p, ends, 1);
  oct_jparse_expect(p, OCT_T_NAME, "endset");
  return node;
}

static oct_jnode *
parse_macro(oct_jparser *p) {
  static const char *const ends[] = {"endmacro"};
  oct_jnode *node = oct_jparse_node(p, OCT_N_MACRO), **last = &node->list;
  node->name = parse_name(p);
  oct_jparse_expect(p, OCT_T_OPERATOR, "(");
  while (!p->failed && !oct_jparse_is(p, OCT_T_OPERATOR, ")")) {
    oct_jnode *parameter = oct_jparse_node(p, OCT_N_NAME);
    parameter->name = parse_name(p);
    if (oct_jparse_accept(p, OCT_T_OPERATOR, "="))
      parameter->a = oct_jparse_expression(p, FALSE, TRUE);
    *last = parameter;
    last = &parameter->next;
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ","))
      break;
  }
  oct_jparse_expect(p, OCT_T_OPERATOR, ")");
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  node->body = parse_body(p, ends, 1);
  oct_jparse_expect(p, OCT_T_NAME, "endmacro");
  if (oct_jparse_is(p, OCT_T_NAME, NULL))
    p->at++;
  return node;
}

static oct_jnode *
parse_with(oct_jparser *p) {
  static const char *const ends[] = {"endwith"};
  oct_jnode *node = oct_jparse_node(p, OCT_N_WITH), **last = &node->list;
  while (!p->failed && !oct_jparse_is(p, OCT_T_BLOCK_END, NULL)) {
    oct_jnode *set = oct_jparse_node(p, OCT_N_SET);
    set->a = oct_jparse_target(p, FALSE);
    oct_jparse_expect(p, OCT_T_OPERATOR, "=");
    set->b = oct_jparse_expression(p, FALSE, TRUE);
    *last = set;
    last = &set->next;
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ","))
      break;
  }
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  node->body = parse_body(p, ends, 1);
  oct_jparse_expect(p, OCT_T_NAME, "endwith");
  return node;
}

static oct_jnode *
parse_filter_block(oct_jparser *p) {
  static const char *const ends[] = {"endfilter"};
  oct_jnode *node = oct_jparse_node(p, OCT_N_FILTERBLOCK);
  oct_jnode *hole = oct_jparse_node(p, OCT_N_HOLE);
  p->at--; /* the chain begins at the word "filter", which stands for its first bar */
  node->b = oct_jparse_filters(p, hole);
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  node->body = parse_body(p, ends, 1);
  oct_jparse_expect(p, OCT_T_NAME, "endfilter");
  return node;
}

/* {% generation %} marks what the model writes, for training; here it is its body. */
static oct_jnode *
parse_generation(oct_jparser *p) {
  static const char *const ends[] = {"endgeneration"};
  oct_jnode *node = oct_jparse_node(p, OCT_N_SCOPE);
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  node->body = parse_body(p, ends, 1);
  oct_jparse_expect(p, OCT_T_NAME, "endgeneration");
  return node;
}

static oct_jnode *
parse_statement(oct_jparser *p) {
  oct_jnode *node = NULL;
  if (oct_jparse_accept(p, OCT_T_NAME, "if"))
    node = parse_if(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "for"))
    node = parse_for(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "set"))
    node = parse_set(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "macro"))
    node = parse_macro(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "with"))
    node = parse_with(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "filter"))
    node = parse_filter_block(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "generation"))
    node = parse_generation(p);
  else if (oct_jparse_accept(p, OCT_T_NAME, "break"))
    node = oct_jparse_node(p, OCT_N_BREAK);
  else if (oct_jparse_accept(p, OCT_T_NAME, "continue"))
    node = oct_jparse_node(p, OCT_N_CONTINUE);
  else
    oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "the tag", p->at->text);
  oct_jparse_expect(p, OCT_T_BLOCK_END, NULL);
  return node;
}

/* Statements up to one of the words that end the body, which is left at its name, or up to the end
 * of the source when there are none. */
static oct_jnode *
parse_body(oct_jparser *p, const char *const *ends, guint n_ends) {
  oct_jnode *first = NULL, **last = &first;
  if (++p->depth > OCT_TEMPLATE_DEPTH_MAX)
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "blocks nest too deeply at", p->at->text);
  while (!p->failed) {
    oct_jnode *node;
    if (oct_jparse_is(p, OCT_T_TEXT, NULL)) {
      node = oct_jparse_node(p, OCT_N_TEXT);
      oct_jstring *string = oct_arena_alloc(p->arena, sizeof *string);
      if (string == NULL)
        break;
      *string = (oct_jstring){.bytes = p->at->text, .size = p->at->size};
      node->value = (oct_jvalue){.kind = OCT_J_STRING, .string = string};
      p->at++;
    } else if (oct_jparse_accept(p, OCT_T_OUTPUT_BEGIN, NULL)) {
      node = oct_jparse_node(p, OCT_N_OUTPUT);
      node->a = oct_jparse_expression(p, TRUE, TRUE);
      oct_jparse_expect(p, OCT_T_OUTPUT_END, NULL);
    } else if (oct_jparse_accept(p, OCT_T_BLOCK_BEGIN, NULL)) {
      for (guint i = 0; i < n_ends; i++)
        if (oct_jparse_is(p, OCT_T_NAME, ends[i])) {
          p->depth--;
          return first;
        }
      node = parse_statement(p);
    } else {
      if (n_ends > 0)
        oct_jparse_fail(p, OCT_TEXT_ERROR_FORMAT, "the template ends without", ends[n_ends - 1]);
      break;
    }
    *last = node;
    if (node != NULL)
      last = &node->next;
  }
  p->depth--;
  return first;
}

oct_jnode *
oct_jinja_parse(oct_arena *arena, const GArray *tokens, GError **error) {
  oct_jparser p = {
      .arena = arena, .at = (const oct_jtoken *)(const void *)tokens->data, .error = error};
  oct_jnode *root = oct_jparse_node(&p, OCT_N_SCOPE);
  root->body = parse_body(&p, NULL, 0);
  return p.failed ? NULL : root;
}
