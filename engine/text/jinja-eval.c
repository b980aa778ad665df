/* Walks the tree. Recursion follows the tree and macro calls, both bounded by
 * OCT_TEMPLATE_CALLS_MAX. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/jinja-internal.h"

typedef enum oct_jflow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } oct_jflow;

static oct_jflow run_body(oct_jrun *run, const oct_jnode *first);

/* --- names ------------------------------------------------------------------------------------ */

static void
push_scope(oct_jrun *run, oct_jscope *parent) {
  oct_jscope *scope = run->failed ? NULL : oct_arena_alloc(&run->arena, sizeof *scope);
  if (scope == NULL) {
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the template takes too much memory");
    return;
  }
  scope->parent = parent;
  scope->names = oct_jdict_new(run, 4).dict;
  run->scope = scope;
}

static void
set_name(oct_jrun *run, const char *name, oct_jvalue value) {
  oct_jvalue *place = (oct_jvalue *)oct_jdict_get(run, run->scope->names, name, strlen(name));
  if (place != NULL)
    *place = value;
  else
    oct_jdict_set(run, run->scope->names, oct_jtext(run, name, strlen(name), 0), value);
}

static oct_jvalue
get_name(oct_jrun *run, const char *name) {
  gsize size = strlen(name);
  for (const oct_jscope *scope = run->scope; scope != NULL; scope = scope->parent) {
    const oct_jvalue *found = oct_jdict_get(run, scope->names, name, size);
    if (found != NULL)
      return *found;
  }
  if (oct_jfunction_known(name))
    return (oct_jvalue){.kind = OCT_J_FUNCTION, .name = name};
  return oct_jundefined(name);
}

static void
assign(oct_jrun *run, const oct_jnode *target, oct_jvalue value) {
  run->line = target->line;
  if (target->op == OCT_N_NAME) {
    set_name(run, target->name, value);
  } else if (target->op == OCT_N_ATTR) {
    oct_jvalue object = get_name(run, target->a->name);
    if (object.kind != OCT_J_DICT || !object.dict->is_namespace)
      oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "'%s' is not a namespace, and '%s' of it is set",
                target->a->name, target->name);
    else
      oct_jdict_set(run, object.dict, oct_jtext(run, target->name, strlen(target->name), 0), value);
  } else {
    const oct_jlist *items = oct_jitems(run, value);
    gsize i = 0;
    for (const oct_jnode *part = target->list; part != NULL && !run->failed; part = part->next)
      if (i < items->n)
        assign(run, part->a, items->items[i++]);
      else
        i = items->n + 1;
    if (i != items->n)
      oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE,
                "%" G_GSIZE_FORMAT " values for another number of names", items->n);
  }
}

/* --- expressions ------------------------------------------------------------------------------ */

static void
eval_arguments(oct_jrun *run, const oct_jnode *first, oct_jargs *args) {
  guint n = 0, named = 0;
  for (const oct_jnode *node = first; node != NULL; node = node->next)
    node->name == NULL ? n++ : named++;
  *args = (oct_jargs){0};
  if (n + named == 0)
    return;
  oct_jvalue *values = oct_arena_alloc(&run->arena, (n + named) * sizeof *values);
  const char **names = oct_arena_alloc(&run->arena, (named + 1u) * sizeof *names);
  if (values == NULL || names == NULL) {
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "the template takes too much memory");
    return;
  }
  args->values = values;
  args->named = values + n;
  args->names = names;
  for (const oct_jnode *node = first; node != NULL && !run->failed; node = node->next)
    if (node->name == NULL)
      values[args->n++] = oct_jeval(run, node->a);
    else {
      names[args->n_named] = node->name;
      args->named[args->n_named++] = oct_jeval(run, node->a);
    }
}

oct_jvalue
oct_jarg(const oct_jargs *args, guint place, const char *name, oct_jvalue standard) {
  if (place < args->n)
    return args->values[place];
  for (guint i = 0; name != NULL && i < args->n_named; i++)
    if (strcmp(args->names[i], name) == 0)
      return args->named[i];
  return standard;
}

static gint64
whole(oct_jvalue value) {
  return value.kind == OCT_J_BOOL ? value.boolean : value.integer;
}

static gboolean
is_number(oct_jvalue value) {
  return value.kind == OCT_J_BOOL || value.kind == OCT_J_INT || value.kind == OCT_J_FLOAT;
}

static oct_jvalue
integer_arithmetic(oct_jrun *run, const char *op, gint64 a, gint64 b) {
  gint64 result = 0;
  gboolean overflow = FALSE;
  if (strcmp(op, "+") == 0)
    overflow = __builtin_add_overflow(a, b, &result);
  else if (strcmp(op, "-") == 0)
    overflow = __builtin_sub_overflow(a, b, &result);
  else if (strcmp(op, "*") == 0)
    overflow = __builtin_mul_overflow(a, b, &result);
  else if (b == 0)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "division by zero");
  else if (a == G_MININT64 && b == -1)
    overflow = TRUE;
  else {
    /* Python rounds down. */
    gint64 quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
      quotient--;
      rest += b;
    }
    result = strcmp(op, "//") == 0 ? quotient : rest;
  }
  return overflow ? oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "a number beyond 64 bits")
                  : oct_jint(result);
}

static oct_jvalue
power(oct_jrun *run, oct_jvalue a, oct_jvalue b) {
  if (a.kind == OCT_J_FLOAT || b.kind == OCT_J_FLOAT || whole(b) < 0)
    return oct_jfloat(pow(oct_jnumber(a), oct_jnumber(b)));
  gint64 result = 1, base = whole(a), times = whole(b);
  for (; times > 0 && oct_jburn(run, 1); times--) {
    if (__builtin_mul_overflow(result, base, &result))
      return oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "a number beyond 64 bits");
    if (base >= -1 && base <= 1)
      times = MIN(times, 2 + times % 2);
  }
  return oct_jint(result);
}

static oct_jvalue
arithmetic(oct_jrun *run, const char *op, oct_jvalue a, oct_jvalue b) {
  if (strcmp(op, "**") == 0)
    return power(run, a, b);
  if (a.kind != OCT_J_FLOAT && b.kind != OCT_J_FLOAT && strcmp(op, "/") != 0)
    return integer_arithmetic(run, op, whole(a), whole(b));
  double x = oct_jnumber(a), y = oct_jnumber(b);
  if (*op == '+')
    return oct_jfloat(x + y);
  if (*op == '-')
    return oct_jfloat(x - y);
  if (*op == '*')
    return oct_jfloat(x * y);
  if (!(y < 0) && !(y > 0))
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "division by zero");
  if (*op == '%')
    return oct_jfloat(x - y * floor(x / y));
  return oct_jfloat(op[1] == '/' ? floor(x / y) : x / y);
}

static oct_jvalue
repeat(oct_jrun *run, oct_jvalue value, gint64 times) {
  if (value.kind == OCT_J_STRING) {
    oct_jbuilder *builder = oct_jbuild_begin(run);
    for (gint64 i = 0; builder != NULL && i < times && oct_jburn(run, 1); i++)
      oct_jbuild_value(run, builder, value);
    return oct_jbuild_end(run, builder);
  }
  oct_jvalue list = oct_jlist_new(run, 0);
  for (gint64 i = 0; i < times && oct_jburn(run, 1); i++)
    for (gsize k = 0; k < value.list->n && !run->failed; k++)
      oct_jlist_add(run, list.list, value.list->items[k]);
  return list;
}

/* 'text %s' % value: with %s, %d and %%. */
static oct_jvalue
format(oct_jrun *run, const oct_jstring *string, oct_jvalue value) {
  gboolean tuple = value.kind == OCT_J_LIST && value.list->tuple;
  gsize used = 0, n = tuple ? value.list->n : 1, plain = 0;
  oct_jbuilder *builder = oct_jbuild_begin(run);
  for (gsize at = 0; builder != NULL && at < string->size && !run->failed; at++) {
    if (string->bytes[at] != '%')
      continue;
    oct_jbuild_part(run, builder, string, plain, at);
    char c = at + 1 < string->size ? string->bytes[at + 1] : 0;
    if (c == '%')
      oct_jbuild_bytes(run, builder, "%", 1, 0);
    else if (c != 's' && c != 'd')
      oct_jfail(run, OCT_TEXT_ERROR_UNSUPPORTED, "the format '%%%c'", c);
    else if (used == n)
      oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a format has too few values");
    else
      oct_jbuild_value(run, builder, tuple ? value.list->items[used] : value), used++;
    plain = ++at + 1;
  }
  if (builder != NULL && !run->failed)
    oct_jbuild_part(run, builder, string, MIN(plain, string->size), string->size);
  return oct_jbuild_end(run, builder);
}

oct_jvalue
oct_jbinary(oct_jrun *run, const char *op, oct_jvalue a, oct_jvalue b) {
  if (*op == '~')
    return oct_jconcat(run, a, b);
  if (is_number(a) && is_number(b))
    return arithmetic(run, op, a, b);
  if (*op == '+' && a.kind == OCT_J_STRING && b.kind == OCT_J_STRING)
    return oct_jconcat(run, a, b);
  if (*op == '+' && a.kind == OCT_J_LIST && b.kind == OCT_J_LIST &&
      a.list->tuple == b.list->tuple) {
    oct_jvalue list = oct_jlist_new(run, a.list->n + b.list->n);
    list.list->tuple = a.list->tuple;
    if (!oct_jburn(run, (a.list->n + b.list->n) / 4))
      return list;
    for (gsize i = 0; i < a.list->n; i++)
      oct_jlist_add(run, list.list, a.list->items[i]);
    for (gsize i = 0; i < b.list->n; i++)
      oct_jlist_add(run, list.list, b.list->items[i]);
    return list;
  }
  if (strcmp(op, "*") == 0 && b.kind == OCT_J_INT &&
      (a.kind == OCT_J_STRING || a.kind == OCT_J_LIST))
    return repeat(run, a, b.integer);
  if (*op == '%' && a.kind == OCT_J_STRING)
    return format(run, a.string, b);
  if (a.kind == OCT_J_UNDEFINED || b.kind == OCT_J_UNDEFINED)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "'%s' is undefined",
                     a.kind == OCT_J_UNDEFINED ? a.name : b.name);
  return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "'%s' between a %s and a %s", op,
                   oct_jkind_name(a), oct_jkind_name(b));
}

static oct_jvalue
eval_compare(oct_jrun *run, const oct_jnode *node) {
  oct_jvalue left = oct_jeval(run, node->a);
  for (const oct_jnode *part = node->list; part != NULL && !run->failed; part = part->next) {
    oct_jvalue right = oct_jeval(run, part->b);
    const char *op = part->name;
    gboolean holds;
    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0)
      holds = oct_jequal(run, left, right, 0) == (*op == '=');
    else if (*op == 'i' || *op == 'n')
      holds = oct_jcontains(run, right, left) == (*op == 'i');
    else {
      int order = oct_jcompare(run, left, right);
      holds = *op == '<' ? order < 0 : order > 0;
      if (op[1] == '=')
        holds = *op == '<' ? order <= 0 : order >= 0;
    }
    if (!holds)
      return oct_jbool(FALSE);
    left = right;
  }
  return oct_jbool(TRUE);
}

static oct_jvalue
eval_collection(oct_jrun *run, const oct_jnode *node) {
  if (node->op == OCT_N_DICT) {
    oct_jvalue dict = oct_jdict_new(run, 4);
    for (const oct_jnode *key = node->list; key != NULL && !run->failed; key = key->next->next)
      oct_jdict_set(run, dict.dict, oct_jeval(run, key->a), oct_jeval(run, key->next->a));
    return dict;
  }
  oct_jvalue list = oct_jlist_new(run, 0);
  list.list->tuple = node->op == OCT_N_TUPLE;
  for (const oct_jnode *item = node->list; item != NULL && !run->failed; item = item->next)
    oct_jlist_add(run, list.list, oct_jeval(run, item->a));
  return list;
}

static oct_jvalue
eval_access(oct_jrun *run, const oct_jnode *node) {
  oct_jvalue object = oct_jeval(run, node->a);
  run->line = node->line;
  if (run->failed)
    return oct_jnone();
  if (node->op == OCT_N_ATTR)
    return oct_jget_attr(run, object, node->name);
  if (node->op == OCT_N_ITEM) {
    oct_jvalue key = oct_jeval(run, node->b);
    return run->failed ? oct_jnone() : oct_jget_item(run, object, key);
  }
  oct_jvalue bounds[3] = {oct_jnone(), oct_jnone(), oct_jnone()};
  const oct_jnode *const parts[3] = {node->b, node->c, node->d};
  for (guint i = 0; i < 3; i++)
    if (parts[i] != NULL)
      bounds[i] = oct_jeval(run, parts[i]);
  return run->failed ? oct_jnone() : oct_jslice(run, object, bounds);
}

static oct_jvalue
eval_applied(oct_jrun *run, const oct_jnode *node) {
  oct_jargs args;
  oct_jvalue value = oct_jeval(run, node->a);
  eval_arguments(run, node->list, &args);
  run->line = node->line;
  if (run->failed)
    return oct_jnone();
  if (node->op == OCT_N_FILTER)
    return oct_jfilter(run, node->name, value, &args);
  if (node->op == OCT_N_TEST)
    return oct_jbool(oct_jtest(run, node->name, value, &args));
  if (value.kind == OCT_J_UNDEFINED)
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "'%s' is called and is undefined", value.name);
  return oct_jcall(run, value, &args);
}

static oct_jvalue
negate(oct_jrun *run, oct_jvalue value, gboolean negative) {
  if (!is_number(value))
    return oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "a sign before a %s", oct_jkind_name(value));
  if (value.kind == OCT_J_FLOAT)
    return oct_jfloat(negative ? -value.real : value.real);
  return integer_arithmetic(run, negative ? "-" : "+", 0, whole(value));
}

static oct_jvalue
eval(oct_jrun *run, const oct_jnode *node) {
  oct_jvalue left;
  switch ((int)node->op) {
  case OCT_N_VALUE:
    return node->value;
  case OCT_N_HOLE:
    return run->hole;
  case OCT_N_NAME:
    return get_name(run, node->name);
  case OCT_N_LIST:
  case OCT_N_TUPLE:
  case OCT_N_DICT:
    return eval_collection(run, node);
  case OCT_N_ATTR:
  case OCT_N_ITEM:
  case OCT_N_SLICE:
    return eval_access(run, node);
  case OCT_N_CALL:
  case OCT_N_FILTER:
  case OCT_N_TEST:
    return eval_applied(run, node);
  case OCT_N_NOT:
    return oct_jbool(!oct_jtrue(oct_jeval(run, node->a)));
  case OCT_N_NEGATIVE:
  case OCT_N_POSITIVE:
    return negate(run, oct_jeval(run, node->a), node->op == OCT_N_NEGATIVE);
  case OCT_N_AND:
  case OCT_N_OR:
    left = oct_jeval(run, node->a);
    return run->failed || oct_jtrue(left) == (node->op == OCT_N_OR) ? left
                                                                    : oct_jeval(run, node->b);
  case OCT_N_COND:
    if (oct_jtrue(oct_jeval(run, node->b)))
      return oct_jeval(run, node->a);
    return node->c == NULL ? oct_jundefined("an if without else") : oct_jeval(run, node->c);
  case OCT_N_COMPARE:
    return eval_compare(run, node);
  case OCT_N_BINARY: {
    left = oct_jeval(run, node->a);
    oct_jvalue right = oct_jeval(run, node->b);
    run->line = node->line;
    return run->failed ? left : oct_jbinary(run, node->name, left, right);
  }
  default:
    oct_assert(FALSE);
    return oct_jnone();
  }
}

oct_jvalue
oct_jeval(oct_jrun *run, const oct_jnode *node) {
  if (run->calls >= OCT_TEMPLATE_CALLS_MAX)
    return oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "evaluations nest more than %u deep",
                     OCT_TEMPLATE_CALLS_MAX);
  if (!oct_jburn(run, 1))
    return oct_jnone();
  run->line = node->line;
  run->calls++;
  oct_jvalue value = eval(run, node);
  run->calls--;
  return value;
}

/* --- statements ------------------------------------------------------------------------------- */

/* Runs a body into a string. */
static oct_jvalue
capture(oct_jrun *run, const oct_jnode *body) {
  oct_jbuilder *outer = run->out, *builder = oct_jbuild_begin(run);
  if (builder == NULL)
    return oct_jnone();
  run->out = builder;
  run_body(run, body);
  run->out = outer;
  return oct_jbuild_end(run, builder);
}

oct_jvalue
oct_jcall_macro(oct_jrun *run, const oct_jmacro *macro, const oct_jargs *args) {
  oct_jscope *outer = run->scope;
  guint place = 0, taken = 0;
  push_scope(run, macro->scope);
  for (const oct_jnode *parameter = macro->node->list; parameter != NULL && !run->failed;
       parameter = parameter->next, place++) {
    oct_jvalue nothing = oct_jundefined(parameter->name);
    oct_jvalue value = oct_jarg(args, place, parameter->name, nothing);
    gboolean given = place < args->n;
    for (guint i = 0; i < args->n_named && !given; i++)
      if (strcmp(args->names[i], parameter->name) == 0) {
        given = TRUE;
        taken++;
      }
    if (!given && parameter->a != NULL)
      value = oct_jeval(run, parameter->a);
    set_name(run, parameter->name, value);
  }
  if (args->n > place || taken < args->n_named)
    oct_jfail(run, OCT_TEXT_ERROR_TEMPLATE, "macro '%s' does not take these arguments",
              macro->node->name);
  oct_jvalue result = run->failed ? oct_jnone() : capture(run, macro->node->body);
  run->scope = outer;
  return result;
}

static oct_jlist *
filtered_items(oct_jrun *run, const oct_jnode *node) {
  oct_jlist *items = oct_jitems(run, oct_jeval(run, node->b));
  if (node->c == NULL || run->failed)
    return items;
  oct_jscope *outer = run->scope;
  oct_jvalue kept = oct_jlist_new(run, 0);
  push_scope(run, outer);
  for (gsize i = 0; i < items->n && !run->failed; i++) {
    assign(run, node->a, items->items[i]);
    if (!run->failed && oct_jtrue(oct_jeval(run, node->c)))
      oct_jlist_add(run, kept.list, items->items[i]);
  }
  run->scope = outer;
  return kept.list;
}

static void
run_for(oct_jrun *run, const oct_jnode *node) {
  oct_jlist *items = filtered_items(run, node);
  oct_jscope *outer = run->scope;
  oct_jloop *loop = run->failed ? NULL : oct_arena_alloc(&run->arena, sizeof *loop);
  if (loop == NULL)
    return;
  loop->items = items;
  for (gsize i = 0; i < items->n && !run->failed; i++) {
    loop->index0 = i;
    push_scope(run, outer);
    if (run->failed)
      break;
    set_name(run, "loop", (oct_jvalue){.kind = OCT_J_LOOP, .loop = loop});
    assign(run, node->a, items->items[i]);
    oct_jflow flow = run->failed ? FLOW_BREAK : run_body(run, node->body);
    if (flow == FLOW_BREAK)
      break;
  }
  run->scope = outer;
  if (items->n == 0 && !run->failed) {
    push_scope(run, outer);
    run_body(run, node->other);
    run->scope = outer;
  }
}

static void
run_captured(oct_jrun *run, const oct_jnode *node) {
  oct_jscope *outer = run->scope;
  push_scope(run, outer);
  oct_jvalue text = run->failed ? oct_jnone() : capture(run, node->body);
  run->scope = outer;
  if (node->b != NULL && !run->failed) {
    oct_jvalue hole = run->hole;
    run->hole = text;
    text = oct_jeval(run, node->b);
    run->hole = hole;
  }
  if (run->failed)
    return;
  if (node->op == OCT_N_SETBLOCK)
    assign(run, node->a, text);
  else
    oct_jbuild_value(run, run->out, text);
}

static void
run_with(oct_jrun *run, const oct_jnode *node) {
  oct_jscope *outer = run->scope;
  push_scope(run, outer);
  oct_jscope *inner = run->scope;
  for (const oct_jnode *set = node->list; set != NULL && !run->failed; set = set->next) {
    run->scope = outer;
    oct_jvalue value = oct_jeval(run, set->b);
    run->scope = inner;
    if (!run->failed)
      assign(run, set->a, value);
  }
  run_body(run, node->body);
  run->scope = outer;
}

static void
define_macro(oct_jrun *run, const oct_jnode *node) {
  oct_jmacro *macro = oct_arena_alloc(&run->arena, sizeof *macro);
  if (macro == NULL)
    return;
  *macro = (oct_jmacro){.node = node, .scope = run->scope};
  set_name(run, node->name, (oct_jvalue){.kind = OCT_J_MACRO, .macro = macro});
}

static oct_jflow
run_statement(oct_jrun *run, const oct_jnode *node) {
  oct_jvalue value;
  switch ((int)node->op) {
  case OCT_N_TEXT:
    oct_jbuild_value(run, run->out, node->value);
    break;
  case OCT_N_OUTPUT:
    value = oct_jeval(run, node->a);
    if (!run->failed)
      oct_jbuild_value(run, run->out, value);
    break;
  case OCT_N_IF:
    for (; node != NULL && node->op == OCT_N_IF && !run->failed; node = node->other)
      if (oct_jtrue(oct_jeval(run, node->a)))
        return run->failed ? FLOW_ON : run_body(run, node->body);
    return run->failed ? FLOW_ON : run_body(run, node);
  case OCT_N_FOR:
    run_for(run, node);
    break;
  case OCT_N_SET:
    value = oct_jeval(run, node->b);
    if (!run->failed)
      assign(run, node->a, value);
    break;
  case OCT_N_SETBLOCK:
  case OCT_N_FILTERBLOCK:
    run_captured(run, node);
    break;
  case OCT_N_MACRO:
    define_macro(run, node);
    break;
  case OCT_N_WITH:
    run_with(run, node);
    break;
  case OCT_N_BREAK:
    return FLOW_BREAK;
  case OCT_N_CONTINUE:
    return FLOW_CONTINUE;
  case OCT_N_SCOPE:
    return run_body(run, node->body);
  default:
    oct_assert(FALSE);
  }
  return FLOW_ON;
}

static oct_jflow
run_body(oct_jrun *run, const oct_jnode *first) {
  if (run->calls >= OCT_TEMPLATE_CALLS_MAX)
    oct_jfail(run, OCT_TEXT_ERROR_LIMIT, "blocks nest more than %u deep", OCT_TEMPLATE_CALLS_MAX);
  run->calls++;
  oct_jflow flow = FLOW_ON;
  for (const oct_jnode *node = first; node != NULL && flow == FLOW_ON && oct_jburn(run, 1);
       node = node->next) {
    run->line = node->line;
    flow = run_statement(run, node);
  }
  run->calls--;
  return flow;
}

/* --- the interface -----------------------------------------------------------------------------
 */

oct_template *
oct_template_new(const char *source, gsize size, GError **error) {
  if (size > OCT_TEMPLATE_BYTES_MAX || !g_utf8_validate_len(source, size, NULL)) {
    g_set_error(error, OCT_TEXT_ERROR,
                size > OCT_TEMPLATE_BYTES_MAX ? OCT_TEXT_ERROR_LIMIT : OCT_TEXT_ERROR_FORMAT,
                "a chat template of %" G_GSIZE_FORMAT " bytes: at most %u, in UTF-8", size,
                OCT_TEMPLATE_BYTES_MAX);
    return NULL;
  }
  g_autoptr(oct_template) t = g_new0(oct_template, 1);
  oct_arena_init(&t->arena, 64u << 20);
  g_autoptr(GArray) tokens = oct_jinja_lex(&t->arena, source, size, error);
  t->body = tokens == NULL ? NULL : oct_jinja_parse(&t->arena, tokens, error);
  return t->body == NULL ? NULL : g_steal_pointer(&t);
}

void
oct_template_free(oct_template *t) {
  if (t == NULL)
    return;
  oct_arena_clear(&t->arena);
  g_free(t);
}

static void
set_variables(oct_jrun *run, const json_t *variables, guint8 mark) {
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)variables, name, value)
      set_name(run, name, oct_jfrom_json(run, value, mark, 0));
}

gboolean
oct_template_render(const oct_template *t, const oct_template_input *input, oct_prompt *prompt,
                    GError **error) {
  oct_jrun *run = g_new0(oct_jrun, 1);
  run->input = input;
  run->fuel = input->fuel == 0 ? OCT_TEMPLATE_FUEL : input->fuel;
  run->error = error;
  oct_arena_init(&run->arena, OCT_TEMPLATE_MEMORY_MAX);
  push_scope(run, NULL);
  set_variables(run, input->own, 0);
  set_variables(run, input->outside, OCT_MARK_OUTSIDE);
  oct_jbuilder *builder = oct_jbuild_begin(run);
  run->out = builder;
  run_body(run, t->body);
  if (builder->text->len > 0) {
    g_byte_array_append(prompt->text, builder->text->data, builder->text->len);
    g_byte_array_append(prompt->marks, builder->marks->data, builder->marks->len);
  }
  gboolean ok = !run->failed;
  for (guint i = 0; i < OCT_TEMPLATE_CALLS_MAX && run->builders[i].text != NULL; i++) {
    g_byte_array_unref(run->builders[i].text);
    g_byte_array_unref(run->builders[i].marks);
  }
  oct_arena_clear(&run->arena);
  g_free(run);
  return ok;
}
