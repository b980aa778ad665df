/* Expressions, with Jinja's precedences: if-else, or, and, not, comparisons, + -, ~, * / // %,
 * unary minus, **, then calls, items and filters. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

static oct_jnode *parse_condition(oct_jparser *p);
static oct_jnode *parse_or(oct_jparser *p);
static oct_jnode *parse_unary(oct_jparser *p, gboolean filters);

static oct_jnode *
node_of(oct_jparser *p, oct_jop op, oct_jnode *a, const char *name, oct_jnode *b) {
  oct_jnode *node = oct_jparse_node(p, op);
  node->a = a;
  node->name = name;
  node->b = b;
  return node;
}

static oct_jnode *
value_node(oct_jparser *p, oct_jvalue value) {
  oct_jnode *node = oct_jparse_node(p, OCT_N_VALUE);
  node->value = value;
  return node;
}

/* Adjacent strings are one. */
static oct_jnode *
parse_string(oct_jparser *p) {
  g_autoptr(GString) text = g_string_new(NULL);
  for (; oct_jparse_is(p, OCT_T_STRING, NULL); p->at++)
    g_string_append_len(text, p->at->text, (gssize)p->at->size);
  char *copy = oct_arena_alloc(p->arena, text->len + 1);
  oct_jstring *string = oct_arena_alloc(p->arena, sizeof *string);
  if (copy == NULL || string == NULL) {
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "too large a template at", "a string");
    return value_node(p, oct_jnone());
  }
  memcpy(copy, text->str, text->len);
  *string = (oct_jstring){.bytes = copy, .size = text->len};
  return value_node(p, (oct_jvalue){.kind = OCT_J_STRING, .string = string});
}

static oct_jnode *
parse_number(oct_jparser *p) {
  const oct_jtoken *token = p->at++;
  if (token->kind == OCT_T_FLOAT)
    return value_node(p, oct_jfloat(g_ascii_strtod(token->text, NULL)));
  errno = 0;
  gint64 value = g_ascii_strtoll(token->text, NULL, 10);
  if (errno != 0)
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "a number beyond 64 bits,", token->text);
  return value_node(p, oct_jint(value));
}

/* Items up to `close`; `pairs`: key: value. */
static void
parse_items(oct_jparser *p, oct_jnode *node, const char *close, gboolean pairs) {
  oct_jnode **last = &node->list;
  while (!p->failed && !oct_jparse_is(p, OCT_T_OPERATOR, close)) {
    for (int i = 0; i < (pairs ? 2 : 1); i++) {
      if (i == 1)
        oct_jparse_expect(p, OCT_T_OPERATOR, ":");
      /* A wrapper, so that an item's own links stay free. */
      oct_jnode *item = node_of(p, OCT_N_KEYWORD, parse_condition(p), NULL, NULL);
      *last = item;
      last = &item->next;
    }
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ","))
      break;
  }
  oct_jparse_expect(p, OCT_T_OPERATOR, close);
}

static oct_jnode *
parse_name_or_word(oct_jparser *p) {
  static const char *const refused[] = {"caller", "varargs", "kwargs", "self",
                                        "super",  "cycler",  "joiner", "lipsum"};
  const char *name = p->at->text;
  for (guint i = 0; i < G_N_ELEMENTS(refused); i++)
    if (strcmp(name, refused[i]) == 0)
      oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "the name", name);
  p->at++;
  if (strcmp(name, "true") == 0 || strcmp(name, "True") == 0)
    return value_node(p, oct_jbool(TRUE));
  if (strcmp(name, "false") == 0 || strcmp(name, "False") == 0)
    return value_node(p, oct_jbool(FALSE));
  if (strcmp(name, "none") == 0 || strcmp(name, "None") == 0)
    return value_node(p, oct_jnone());
  return node_of(p, OCT_N_NAME, NULL, name, NULL);
}

static oct_jnode *
parse_primary(oct_jparser *p) {
  if (oct_jparse_is(p, OCT_T_NAME, NULL))
    return parse_name_or_word(p);
  if (oct_jparse_is(p, OCT_T_STRING, NULL))
    return parse_string(p);
  if (oct_jparse_is(p, OCT_T_INT, NULL) || oct_jparse_is(p, OCT_T_FLOAT, NULL))
    return parse_number(p);
  if (oct_jparse_accept(p, OCT_T_OPERATOR, "[")) {
    oct_jnode *node = oct_jparse_node(p, OCT_N_LIST);
    parse_items(p, node, "]", FALSE);
    return node;
  }
  if (oct_jparse_accept(p, OCT_T_OPERATOR, "{")) {
    oct_jnode *node = oct_jparse_node(p, OCT_N_DICT);
    parse_items(p, node, "}", TRUE);
    return node;
  }
  if (oct_jparse_accept(p, OCT_T_OPERATOR, "(")) {
    if (oct_jparse_accept(p, OCT_T_OPERATOR, ")"))
      return oct_jparse_node(p, OCT_N_TUPLE);
    oct_jnode *node = oct_jparse_expression(p, TRUE, TRUE);
    oct_jparse_expect(p, OCT_T_OPERATOR, ")");
    return node;
  }
  oct_jparse_fail(p, OCT_TEXT_ERROR_FORMAT, "an expression cannot begin with", p->at->text);
  return oct_jparse_node(p, OCT_N_VALUE);
}

/* Arguments after "(", as a list of KEYWORDs, whose name is NULL for those by place. */
static void
parse_arguments(oct_jparser *p, oct_jnode *node) {
  oct_jnode **last = &node->list;
  while (!p->failed && !oct_jparse_is(p, OCT_T_OPERATOR, ")")) {
    oct_jnode *argument = oct_jparse_node(p, OCT_N_KEYWORD);
    if (oct_jparse_is(p, OCT_T_OPERATOR, "*") || oct_jparse_is(p, OCT_T_OPERATOR, "**"))
      oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "unpacking of arguments with", p->at->text);
    if (p->at->kind == OCT_T_NAME && p->at[1].kind == OCT_T_OPERATOR &&
        strcmp(p->at[1].text, "=") == 0) {
      argument->name = p->at->text;
      p->at += 2;
    }
    argument->a = parse_condition(p);
    *last = argument;
    last = &argument->next;
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ","))
      break;
  }
  oct_jparse_expect(p, OCT_T_OPERATOR, ")");
}

static oct_jnode *
parse_subscript(oct_jparser *p, oct_jnode *of) {
  oct_jnode *parts[3] = {NULL};
  gboolean slice = FALSE;
  for (guint i = 0; i < 3; i++) {
    if (!oct_jparse_is(p, OCT_T_OPERATOR, ":") && !oct_jparse_is(p, OCT_T_OPERATOR, "]"))
      parts[i] = oct_jparse_expression(p, FALSE, TRUE);
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ":"))
      break;
    slice = TRUE;
  }
  if (oct_jparse_is(p, OCT_T_OPERATOR, ","))
    oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "an index with several parts,", ",");
  oct_jparse_expect(p, OCT_T_OPERATOR, "]");
  oct_jnode *node = node_of(p, slice ? OCT_N_SLICE : OCT_N_ITEM, of, NULL, parts[0]);
  node->c = parts[1];
  node->d = parts[2];
  if (!slice && parts[0] == NULL)
    oct_jparse_fail(p, OCT_TEXT_ERROR_FORMAT, "an index is missing before", "]");
  return node;
}

static oct_jnode *
parse_postfix(oct_jparser *p, oct_jnode *node) {
  while (!p->failed) {
    if (oct_jparse_accept(p, OCT_T_OPERATOR, ".")) {
      if (oct_jparse_is(p, OCT_T_INT, NULL))
        node = node_of(p, OCT_N_ITEM, node, NULL, parse_number(p));
      else {
        const char *name = p->at->text;
        oct_jparse_expect(p, OCT_T_NAME, NULL);
        node = node_of(p, OCT_N_ATTR, node, name, NULL);
      }
    } else if (oct_jparse_accept(p, OCT_T_OPERATOR, "["))
      node = parse_subscript(p, node);
    else if (oct_jparse_accept(p, OCT_T_OPERATOR, "(")) {
      node = node_of(p, OCT_N_CALL, node, NULL, NULL);
      parse_arguments(p, node);
    } else
      break;
  }
  return node;
}

/* Names that a filter or test may have: a.b is none of Jinja's own. */
static oct_jnode *
parse_filter(oct_jparser *p, oct_jnode *of) {
  const char *name = p->at->text;
  oct_jparse_expect(p, OCT_T_NAME, NULL);
  if (!p->failed && !oct_jfilter_known(name))
    oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "the filter", name);
  oct_jnode *node = node_of(p, OCT_N_FILTER, of, name, NULL);
  if (oct_jparse_accept(p, OCT_T_OPERATOR, "("))
    parse_arguments(p, node);
  return node;
}

static oct_jnode *
parse_test(oct_jparser *p, oct_jnode *of) {
  static const char *const not_arguments[] = {"else", "or", "and", "is", "if", "in", "not"};
  gboolean negated = oct_jparse_accept(p, OCT_T_NAME, "not");
  const char *name = p->at->text;
  if (!oct_jparse_accept(p, OCT_T_NAME, NULL))
    oct_jparse_fail(p, OCT_TEXT_ERROR_FORMAT, "a test cannot be", name);
  if (!p->failed && !oct_jtest_known(name))
    oct_jparse_fail(p, OCT_TEXT_ERROR_UNSUPPORTED, "the test", name);
  oct_jnode *node = node_of(p, OCT_N_TEST, of, name, NULL);
  gboolean argument = oct_jparse_is(p, OCT_T_NAME, NULL) || oct_jparse_is(p, OCT_T_STRING, NULL) ||
                      oct_jparse_is(p, OCT_T_INT, NULL) || oct_jparse_is(p, OCT_T_FLOAT, NULL) ||
                      oct_jparse_is(p, OCT_T_OPERATOR, "[") ||
                      oct_jparse_is(p, OCT_T_OPERATOR, "{");
  for (guint i = 0; i < G_N_ELEMENTS(not_arguments) && argument; i++)
    argument = !oct_jparse_is(p, OCT_T_NAME, not_arguments[i]);
  if (oct_jparse_accept(p, OCT_T_OPERATOR, "("))
    parse_arguments(p, node);
  else if (argument)
    node->list = node_of(p, OCT_N_KEYWORD, parse_postfix(p, parse_primary(p)), NULL, NULL);
  return negated ? node_of(p, OCT_N_NOT, node, NULL, NULL) : node;
}

oct_jnode *
oct_jparse_filters(oct_jparser *p, oct_jnode *node) {
  /* The first bar may be the word of a filter block. */
  while (!p->failed &&
         (oct_jparse_accept(p, OCT_T_OPERATOR, "|") || oct_jparse_accept(p, OCT_T_NAME, "filter")))
    node = parse_filter(p, node);
  return node;
}

static oct_jnode *
parse_filters_and_tests(oct_jparser *p, oct_jnode *node) {
  while (!p->failed) {
    if (oct_jparse_accept(p, OCT_T_OPERATOR, "|"))
      node = parse_filter(p, node);
    else if (oct_jparse_accept(p, OCT_T_NAME, "is"))
      node = parse_test(p, node);
    else if (oct_jparse_is(p, OCT_T_OPERATOR, "("))
      node = parse_postfix(p, node);
    else
      break;
  }
  return node;
}

static oct_jnode *
parse_unary(oct_jparser *p, gboolean filters) {
  oct_jnode *node;
  if (++p->depth > OCT_TEMPLATE_DEPTH_MAX)
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "an expression nests too deeply at", p->at->text);
  if (p->failed)
    node = oct_jparse_node(p, OCT_N_VALUE);
  else if (oct_jparse_accept(p, OCT_T_OPERATOR, "-"))
    node = node_of(p, OCT_N_NEGATIVE, parse_unary(p, FALSE), NULL, NULL);
  else if (oct_jparse_accept(p, OCT_T_OPERATOR, "+"))
    node = node_of(p, OCT_N_POSITIVE, parse_unary(p, FALSE), NULL, NULL);
  else
    node = parse_postfix(p, parse_primary(p));
  p->depth--;
  return filters ? parse_filters_and_tests(p, node) : node;
}

/* Left-associative operators by rising strength. */
static const char *const levels[4][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};

static oct_jnode *
parse_level(oct_jparser *p, guint level) {
  if (level == G_N_ELEMENTS(levels))
    return parse_unary(p, TRUE);
  oct_jnode *left = parse_level(p, level + 1);
  for (guint i = 0; !p->failed && i < 5 && levels[level][i] != NULL;) {
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, levels[level][i])) {
      i++;
      continue;
    }
    left = node_of(p, OCT_N_BINARY, left, levels[level][i], parse_level(p, level + 1));
    i = 0;
  }
  return left;
}

static const char *
accept_comparison(oct_jparser *p) {
  static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">"};
  for (guint i = 0; i < G_N_ELEMENTS(operators); i++)
    if (oct_jparse_accept(p, OCT_T_OPERATOR, operators[i]))
      return operators[i];
  if (oct_jparse_accept(p, OCT_T_NAME, "in"))
    return "in";
  if (oct_jparse_is(p, OCT_T_NAME, "not") && p->at[1].kind == OCT_T_NAME &&
      strcmp(p->at[1].text, "in") == 0) {
    p->at += 2;
    return "not in";
  }
  return NULL;
}

static oct_jnode *
parse_compare(oct_jparser *p) {
  oct_jnode *left = parse_level(p, 0);
  const char *op = accept_comparison(p);
  if (op == NULL)
    return left;
  oct_jnode *node = node_of(p, OCT_N_COMPARE, left, NULL, NULL), **last = &node->list;
  for (; op != NULL && !p->failed; op = accept_comparison(p)) {
    oct_jnode *part = node_of(p, OCT_N_BINARY, NULL, op, parse_level(p, 0));
    *last = part;
    last = &part->next;
  }
  return node;
}

static oct_jnode *
parse_not(oct_jparser *p) {
  guint n = 0;
  while (oct_jparse_accept(p, OCT_T_NAME, "not"))
    n++;
  oct_jnode *node = parse_compare(p);
  if (n > OCT_TEMPLATE_DEPTH_MAX)
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "too many times", "not");
  for (; n > 0; n--)
    node = node_of(p, OCT_N_NOT, node, NULL, NULL);
  return node;
}

static oct_jnode *
parse_and(oct_jparser *p) {
  oct_jnode *left = parse_not(p);
  while (oct_jparse_accept(p, OCT_T_NAME, "and"))
    left = node_of(p, OCT_N_AND, left, NULL, parse_not(p));
  return left;
}

static oct_jnode *
parse_or(oct_jparser *p) {
  oct_jnode *left = parse_and(p);
  while (oct_jparse_accept(p, OCT_T_NAME, "or"))
    left = node_of(p, OCT_N_OR, left, NULL, parse_and(p));
  return left;
}

static oct_jnode *
parse_condition(oct_jparser *p) {
  if (++p->depth > OCT_TEMPLATE_DEPTH_MAX)
    oct_jparse_fail(p, OCT_TEXT_ERROR_LIMIT, "an expression nests too deeply at", p->at->text);
  oct_jnode *node = p->failed ? oct_jparse_node(p, OCT_N_VALUE) : parse_or(p);
  while (oct_jparse_accept(p, OCT_T_NAME, "if")) {
    node = node_of(p, OCT_N_COND, node, NULL, parse_or(p));
    if (oct_jparse_accept(p, OCT_T_NAME, "else"))
      node->c = parse_condition(p);
  }
  p->depth--;
  return node;
}

oct_jnode *
oct_jparse_expression(oct_jparser *p, gboolean tuple, gboolean condition) {
  oct_jnode *first = condition ? parse_condition(p) : parse_or(p);
  if (!tuple || !oct_jparse_is(p, OCT_T_OPERATOR, ","))
    return first;
  oct_jnode *node = oct_jparse_node(p, OCT_N_TUPLE), **last = &node->list;
  for (oct_jnode *item = first;;) {
    *last = node_of(p, OCT_N_KEYWORD, item, NULL, NULL);
    last = &(*last)->next;
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ",") || oct_jparse_is(p, OCT_T_OPERATOR, ")") ||
        oct_jparse_is(p, OCT_T_OUTPUT_END, NULL) || oct_jparse_is(p, OCT_T_BLOCK_END, NULL))
      break;
    item = condition ? parse_condition(p) : parse_or(p);
  }
  return node;
}

oct_jnode *
oct_jparse_target(oct_jparser *p, gboolean attribute) {
  oct_jnode *tuple = oct_jparse_node(p, OCT_N_TUPLE), **last = &tuple->list;
  gboolean brackets = oct_jparse_accept(p, OCT_T_OPERATOR, "(");
  for (guint n = 1;; n++) {
    const char *name = p->at->text;
    oct_jparse_expect(p, OCT_T_NAME, NULL);
    oct_jnode *node = node_of(p, OCT_N_NAME, NULL, name, NULL);
    if (attribute && n == 1 && oct_jparse_accept(p, OCT_T_OPERATOR, ".")) {
      node = node_of(p, OCT_N_ATTR, node, p->at->text, NULL);
      oct_jparse_expect(p, OCT_T_NAME, NULL);
      return node;
    }
    *last = node_of(p, OCT_N_KEYWORD, node, NULL, NULL);
    last = &(*last)->next;
    if (!oct_jparse_accept(p, OCT_T_OPERATOR, ",")) {
      if (brackets)
        oct_jparse_expect(p, OCT_T_OPERATOR, ")");
      return n == 1 && !brackets ? node : tuple;
    }
  }
}
