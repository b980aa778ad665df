/* Values, tree and evaluation of chat templates. Only jinja*.c include this.
 *
 * Everything that a template or a rendering makes lives in an arena and goes with it. A function
 * that fails sets run->failed (or the parser's) and returns something harmless; loops look at it.
 */
#ifndef OCT_TEXT_JINJA_INTERNAL_H
#define OCT_TEXT_JINJA_INTERNAL_H

#include "engine/text/bpe.h"
#include "engine/text/error.h"
#include "engine/text/jinja.h"

/* --- arena ---------------------------------------------------------------------------------- */

typedef struct oct_arena {
  GPtrArray *blocks;
  gsize used, size; /* of the last block */
  gsize total, max;
} oct_arena;

void oct_arena_init(oct_arena *arena, gsize bytes_max);
void oct_arena_clear(oct_arena *arena);
/* Zeroed and aligned to 16 bytes; NULL beyond the limit. */
void *oct_arena_alloc(oct_arena *arena, gsize size);

/* --- values --------------------------------------------------------------------------------- */

typedef enum oct_jkind {
  OCT_J_UNDEFINED,
  OCT_J_NONE,
  OCT_J_BOOL,
  OCT_J_INT,
  OCT_J_FLOAT,
  OCT_J_STRING,
  OCT_J_LIST, /* a tuple too */
  OCT_J_DICT, /* a namespace too */
  OCT_J_MACRO,
  OCT_J_METHOD,   /* of a value: message.get */
  OCT_J_FUNCTION, /* range, namespace… */
  OCT_J_LOOP,
} oct_jkind;

typedef struct oct_jstring {
  const char *bytes;
  const guint8 *marks; /* one a byte; NULL: all `mark` */
  gsize size;
  guint8 mark;
} oct_jstring;

struct oct_jvalue;
typedef struct oct_jlist {
  struct oct_jvalue *items;
  gsize n, room;
  gboolean tuple;
} oct_jlist;
typedef struct oct_jdict {
  struct oct_jvalue *keys, *values;
  gsize n, room;
  gboolean is_namespace;
} oct_jdict;
typedef struct oct_jloop {
  gsize index0;
  oct_jlist *items;
  struct oct_jvalue *last_changed;
} oct_jloop;
struct oct_jnode;
typedef struct oct_jmacro {
  const struct oct_jnode *node;
  struct oct_jscope *scope; /* where it was defined */
} oct_jmacro;

typedef struct oct_jvalue {
  oct_jkind kind;
  union {
    gboolean boolean;
    gint64 integer;
    double real;
    const oct_jstring *string;
    oct_jlist *list;
    oct_jdict *dict;
    oct_jloop *loop;
    const oct_jmacro *macro;
    struct oct_jmethod *method;
    const char *name; /* of a FUNCTION; what was UNDEFINED */
  };
} oct_jvalue;

typedef struct oct_jmethod {
  oct_jvalue self;
  const oct_jstring *name;
} oct_jmethod;

/* --- tree ----------------------------------------------------------------------------------- */

typedef enum oct_jop {
  /* statements */
  OCT_N_TEXT,        /* value: string */
  OCT_N_OUTPUT,      /* a */
  OCT_N_IF,          /* a: condition, body, other: a list with an IF or the ELSE */
  OCT_N_FOR,         /* a: target, b: items, c: filter, body, other */
  OCT_N_SET,         /* a: target, b: value */
  OCT_N_SETBLOCK,    /* a: target, b: filter chain on OCT_N_HOLE or NULL, body */
  OCT_N_MACRO,       /* name, list: parameters (NAME with a: default), body */
  OCT_N_WITH,        /* list: SETs, body */
  OCT_N_FILTERBLOCK, /* b: filter chain on OCT_N_HOLE, body */
  OCT_N_BREAK,
  OCT_N_CONTINUE,
  OCT_N_SCOPE, /* body, in its place: generation */
  /* expressions */
  OCT_N_VALUE,
  OCT_N_HOLE, /* what a filter block holds */
  OCT_N_NAME,
  OCT_N_LIST,
  OCT_N_TUPLE,
  OCT_N_DICT,    /* list: keys and values in turn */
  OCT_N_ATTR,    /* a.name */
  OCT_N_ITEM,    /* a[b] */
  OCT_N_SLICE,   /* a[b:c:d] */
  OCT_N_CALL,    /* a(list) */
  OCT_N_FILTER,  /* a|name(list) */
  OCT_N_TEST,    /* a is name(list) */
  OCT_N_KEYWORD, /* name=a, in a list of arguments */
  OCT_N_NOT,
  OCT_N_NEGATIVE,
  OCT_N_POSITIVE,
  OCT_N_AND,
  OCT_N_OR,
  OCT_N_COND,    /* a if b else c */
  OCT_N_BINARY,  /* a name b: + - * / // % ** ~ == != < > <= >= in "not in" */
  OCT_N_COMPARE, /* list: a, and BINARYs whose a is NULL */
} oct_jop;

typedef struct oct_jnode {
  oct_jop op;
  guint line;
  const char *name; /* NUL-terminated */
  struct oct_jnode *a, *b, *c, *d;
  struct oct_jnode *list;         /* first of arguments, items… */
  struct oct_jnode *body, *other; /* first of statements */
  struct oct_jnode *next;
  oct_jvalue value;
} oct_jnode;

struct oct_template {
  oct_arena arena;
  oct_jnode *body;
};

/* --- tokens --------------------------------------------------------------------------------- */

typedef enum oct_jtoken_kind {
  OCT_T_END,
  OCT_T_TEXT, /* outside of tags */
  OCT_T_OUTPUT_BEGIN,
  OCT_T_OUTPUT_END,
  OCT_T_BLOCK_BEGIN,
  OCT_T_BLOCK_END,
  OCT_T_NAME,
  OCT_T_STRING, /* its escapes are undone */
  OCT_T_INT,
  OCT_T_FLOAT,
  OCT_T_OPERATOR,
} oct_jtoken_kind;

typedef struct oct_jtoken {
  oct_jtoken_kind kind;
  guint line;
  const char *text; /* NUL-terminated, in the arena */
  gsize size;
} oct_jtoken;

/* Cuts a source into tokens (GArray of oct_jtoken, the last is END), owned. NULL with *error. */
GArray *oct_jinja_lex(oct_arena *arena, const char *source, gsize size, GError **error);
/* The tree of a source's tokens. NULL with *error. */
oct_jnode *oct_jinja_parse(oct_arena *arena, const GArray *tokens, GError **error);

/* The parser's state, shared by statements (jinja-parse.c) and expressions (jinja-expr.c). */
typedef struct oct_jparser {
  oct_arena *arena;
  const oct_jtoken *at;
  guint depth, nodes;
  GError **error;
  gboolean failed;
} oct_jparser;
oct_jnode *oct_jparse_node(oct_jparser *p, oct_jop op);
void oct_jparse_fail(oct_jparser *p, oct_text_error code, const char *what, const char *value);
gboolean oct_jparse_is(const oct_jparser *p, oct_jtoken_kind kind, const char *text);
gboolean oct_jparse_accept(oct_jparser *p, oct_jtoken_kind kind, const char *text);
void oct_jparse_expect(oct_jparser *p, oct_jtoken_kind kind, const char *text);
/* An expression; `tuple`: a, b is a tuple; `condition`: with a if b else c. */
oct_jnode *oct_jparse_expression(oct_jparser *p, gboolean tuple, gboolean condition);
/* Filters that follow: |name(…)|name, applied to `node`. */
oct_jnode *oct_jparse_filters(oct_jparser *p, oct_jnode *node);
/* A name, a tuple of names, or a namespace's attribute: what may be assigned to. */
oct_jnode *oct_jparse_target(oct_jparser *p, gboolean attribute);

/* --- running -------------------------------------------------------------------------------- */

typedef struct oct_jscope {
  struct oct_jscope *parent;
  oct_jdict *names;
} oct_jscope;

/* A string that is being built. */
typedef struct oct_jbuilder {
  GByteArray *text, *marks;
} oct_jbuilder;

typedef struct oct_jrun {
  oct_arena arena;
  const oct_template_input *input;
  gint64 fuel;
  guint calls; /* evaluations inside each other */
  guint line;
  oct_jscope *scope;
  oct_jbuilder *out;
  oct_jvalue hole;
  oct_jbuilder builders[OCT_TEMPLATE_CALLS_MAX]; /* of blocks that are captured, as a stack */
  guint n_builders;
  gsize captured; /* bytes in them */
  gboolean failed;
  GError **error;
} oct_jrun;

/* Arguments of a call, evaluated. */
typedef struct oct_jargs {
  oct_jvalue *values;
  guint n;
  const char **names; /* of keyword arguments, as many as values of them */
  oct_jvalue *named;
  guint n_named;
} oct_jargs;

oct_jvalue oct_jfail(oct_jrun *run, oct_text_error code, const char *format, ...)
    G_GNUC_PRINTF(3, 4);
/* Takes fuel; FALSE, and failed, when there is none. */
gboolean oct_jburn(oct_jrun *run, gsize steps);

/* Making values. */
oct_jvalue oct_jundefined(const char *name);
oct_jvalue oct_jnone(void);
oct_jvalue oct_jbool(gboolean value);
oct_jvalue oct_jint(gint64 value);
oct_jvalue oct_jfloat(double value);
/* The bytes are borrowed for the arena's life. */
oct_jvalue oct_jtext(oct_jrun *run, const char *bytes, gsize size, guint8 mark);
oct_jvalue oct_jcopy(oct_jrun *run, const char *bytes, gsize size, guint8 mark);
oct_jvalue oct_jpart(oct_jrun *run, const oct_jstring *string, gsize from, gsize to);
oct_jvalue oct_jlist_new(oct_jrun *run, gsize room);
void oct_jlist_add(oct_jrun *run, oct_jlist *list, oct_jvalue value);
oct_jvalue oct_jdict_new(oct_jrun *run, gsize room);
void oct_jdict_set(oct_jrun *run, oct_jdict *dict, oct_jvalue key, oct_jvalue value);
const oct_jvalue *oct_jdict_get(oct_jrun *run, const oct_jdict *dict, const char *key, gsize size);
oct_jvalue oct_jfrom_json(oct_jrun *run, const json_t *json, guint8 mark, guint depth);

/* Building strings. A builder is the run's, taken and given back in order. */
oct_jbuilder *oct_jbuild_begin(oct_jrun *run);
oct_jvalue oct_jbuild_end(oct_jrun *run, oct_jbuilder *builder);
void oct_jbuild_part(oct_jrun *run, oct_jbuilder *builder, const oct_jstring *string, gsize from,
                     gsize to);
void oct_jbuild_bytes(oct_jrun *run, oct_jbuilder *builder, const char *bytes, gsize size,
                      guint8 mark);
void oct_jbuild_value(oct_jrun *run, oct_jbuilder *builder, oct_jvalue value); /* as str() */
struct oct_jjson;
void oct_jbuild_json(oct_jrun *run, oct_jbuilder *builder, oct_jvalue value,
                     const struct oct_jjson *style, guint depth);
typedef struct oct_jjson {
  int indent; /* -1: on one line */
  gboolean ascii, sorted;
  const oct_jstring *item, *key; /* separators, NULL: standard */
} oct_jjson;
guint8 oct_jmark_of(const oct_jvalue *value); /* OUTSIDE when any of it is */

/* Looking at values. */
gboolean oct_jtrue(oct_jvalue value);
gboolean oct_jequal(oct_jrun *run, oct_jvalue a, oct_jvalue b, guint depth);
/* < 0, 0, > 0; fails for kinds that Python does not compare. */
int oct_jcompare(oct_jrun *run, oct_jvalue a, oct_jvalue b);
gboolean oct_jcontains(oct_jrun *run, oct_jvalue whole, oct_jvalue part);
gboolean oct_jis(const oct_jstring *string, const char *text);
const char *oct_jkind_name(oct_jvalue value);
gssize oct_jlength(oct_jvalue value); /* in characters, items; -1 when it has none */
/* The items of what can be walked, as a list: the characters of a string, the keys of a dict. */
oct_jlist *oct_jitems(oct_jrun *run, oct_jvalue value);
oct_jvalue oct_jget_item(oct_jrun *run, oct_jvalue value, oct_jvalue key);
oct_jvalue oct_jget_attr(oct_jrun *run, oct_jvalue value, const char *name);
oct_jvalue oct_jslice(oct_jrun *run, oct_jvalue value, const oct_jvalue bounds[3]);
gsize oct_jchars(const oct_jstring *string); /* characters */
double oct_jnumber(oct_jvalue value);
oct_jvalue oct_jconcat(oct_jrun *run, oct_jvalue a, oct_jvalue b);

/* Evaluating. */
oct_jvalue oct_jeval(oct_jrun *run, const oct_jnode *node);
oct_jvalue oct_jcall(oct_jrun *run, oct_jvalue function, const oct_jargs *args);
oct_jvalue oct_jbinary(oct_jrun *run, const char *op, oct_jvalue a, oct_jvalue b);
oct_jvalue oct_jcall_macro(oct_jrun *run, const oct_jmacro *macro, const oct_jargs *args);
oct_jvalue oct_jcall_function(oct_jrun *run, const char *name, const oct_jargs *args);
oct_jvalue oct_jcall_method(oct_jrun *run, const oct_jmethod *method, const oct_jargs *args);
oct_jvalue oct_jfilter(oct_jrun *run, const char *name, oct_jvalue value, const oct_jargs *args);
gboolean oct_jtest(oct_jrun *run, const char *name, oct_jvalue value, const oct_jargs *args);
gboolean oct_jfilter_known(const char *name);
gboolean oct_jtest_known(const char *name);
gboolean oct_jfunction_known(const char *name);
/* What methods and filters share. `how`: u, l, t, c for upper, lower, title, capitalize. */
oct_jvalue oct_jreplace(oct_jrun *run, const oct_jstring *string, const oct_jstring *from,
                        const oct_jstring *to, gint64 most);
oct_jvalue oct_jcase(oct_jrun *run, const oct_jstring *string, char how);
oct_jvalue oct_jjoin(oct_jrun *run, const oct_jlist *items, const oct_jstring *by);
oct_jvalue oct_jdict_items(oct_jrun *run, const oct_jdict *dict);
oct_jvalue oct_jtrim(oct_jrun *run, const oct_jstring *string, const oct_jargs *args);
oct_jvalue oct_jempty(void);
/* An argument by place or name; `standard` when it is not given. */
oct_jvalue oct_jarg(const oct_jargs *args, guint place, const char *name, oct_jvalue standard);

#endif
