/* octet chat: a conversation in a terminal, with a server or with a model that it serves itself. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/local-server.h"
#include "cli/server-flags.h"
#include "cli/trace-flags.h"
#include "client/ask.h"
#include "client/talk.h"
#include "sim/replay/slo.h"

#define COMMAND      "chat"
#define NS_PER_S     G_GINT64_CONSTANT(1000000000)
#define REMOTE_NS    (2 * NS_PER_S)   /* for a server that runs */
#define LOCAL_NS     (600 * NS_PER_S) /* for a model that is loaded */
#define LINE_MAX_LEN (1u << 20)
#define FENCE        "\"\"\""

static const char help_text[] = "/reset           forget the conversation\n"
                                "/system [TEXT]   say how to behave; without TEXT: no more\n"
                                "/save FILE       write the conversation as JSON\n"
                                "/help            this\n"
                                "/exit            leave; so does the end of input\n"
                                "A line that ends in \\ goes on; \"\"\" begins and ends a text of "
                                "several lines.\n"
                                "Ctrl-C stops an answer.\n";

typedef struct options {
  oct_server_flags server;
  char *system, *max_tokens, *temperature, *backend;
} options;

typedef struct session {
  oct_client *client;
  oct_talk *talk;
  char *model;
  guint64 max_tokens;
  double temperature;
  gboolean is_terminal; /* input and output are a person's */
  /* of the answer that comes */
  GString *answer;
  gboolean dimmed, ended;
  oct_failure failure;
} session;

static volatile sig_atomic_t interrupted;

static void
on_signal(int number) {
  (void)number;
  interrupted = 1;
}

/* --- an answer -------------------------------------------------------------------------------- */

/* Text from a model may hold what a terminal takes as a command: only tabs and ends of lines of
 * the control characters are shown. */
static void
show(const session *s, const char *text) {
  for (const char *c = text; *c != '\0'; c = g_utf8_next_char(c)) {
    gunichar u = g_utf8_get_char(c);
    if (s->is_terminal && u != '\n' && u != '\t' && g_unichar_iscntrl(u))
      continue;
    fwrite(c, 1, (gsize)(g_utf8_next_char(c) - c), stdout);
  }
}

static void
dim(session *s, gboolean on) {
  if (s->is_terminal && s->dimmed != on)
    fputs(on ? "\033[2m" : "\033[0m", stdout);
  if (!on && s->dimmed)
    fputs("\n\n", stdout);
  s->dimmed = on;
}

/* Reasoning is shown to people, and is no part of the answer. */
static void
on_piece(void *user, const oct_ask_piece *piece) {
  session *s = user;
  if (*piece->reasoning != '\0' && s->is_terminal) {
    dim(s, TRUE);
    show(s, piece->reasoning);
  }
  if (*piece->text != '\0') {
    dim(s, FALSE);
    show(s, piece->text);
    g_string_append(s->answer, piece->text);
  }
  fflush(stdout);
}

static void
on_end(void *user, const oct_ask_end *end) {
  session *s = user;
  dim(s, FALSE);
  s->ended = TRUE;
  s->failure = end->failure;
  fputc('\n', stdout);
  if (end->failure == OCT_FAILURE_CANCELLED)
    fprintf(stderr, "[stopped]\n");
  else if (end->failure != OCT_FAILURE_NONE)
    fprintf(stderr, "octet chat: %s%s%s\n", oct_failure_name(end->failure),
            *end->message ? ": " : "", end->message);
  else if (s->is_terminal && strcmp(end->finish_reason, "length") == 0)
    fprintf(stderr, "[cut at %u tokens]\n", end->output_tokens);
  fflush(stdout);
}

/* TRUE: it was answered, if only in part. */
static gboolean
ask(session *s, const char *text) {
  oct_question q = {.path = "/v1/chat/completions", .user = s, .piece = on_piece, .end = on_end};
  oct_talk_add(s->talk, "user", text);
  q.body = oct_talk_body(s->talk, s->model, (guint32)s->max_tokens, s->temperature, &q.body_bytes);
  g_string_truncate(s->answer, 0);
  s->ended = FALSE;
  interrupted = 0;
  oct_ask *out = oct_ask_start(s->client, &q);
  while (!s->ended && !interrupted)
    oct_client_poll(s->client, oct_client_now_ns() + NS_PER_S / 10);
  if (!s->ended)
    oct_ask_cancel(out);
  if (s->answer->len > 0)
    oct_talk_add(s->talk, "assistant", s->answer->str);
  else
    oct_talk_drop_last(s->talk);
  return s->failure == OCT_FAILURE_NONE || s->failure == OCT_FAILURE_CANCELLED;
}

/* --- what the user says ----------------------------------------------------------------------- */

/* A line without its end; FALSE at the end of input, and when a signal interrupts it. */
static gboolean
read_line(const session *s, const char *prompt, GString *line) {
  g_string_truncate(line, 0);
  if (s->is_terminal) {
    fputs(prompt, stdout);
    fflush(stdout);
  }
  for (int c; (c = getc(stdin)) != '\n';) {
    if (c == EOF)
      return line->len > 0 && !interrupted;
    if (line->len < LINE_MAX_LEN)
      g_string_append_c(line, (char)c);
  }
  return TRUE;
}

/* The rest of a text between fences, after its first line. */
static void
read_fenced(const session *s, GString *text) {
  g_autoptr(GString) line = g_string_new(NULL);
  g_string_erase(text, 0, strlen(FENCE));
  while (!g_str_has_suffix(text->str, FENCE) && read_line(s, "… ", line)) {
    if (text->len > 0)
      g_string_append_c(text, '\n');
    g_string_append_len(text, line->str, (gssize)line->len);
  }
  if (g_str_has_suffix(text->str, FENCE))
    g_string_truncate(text, text->len - strlen(FENCE));
}

static gboolean
read_text(const session *s, GString *text) {
  g_autoptr(GString) line = g_string_new(NULL);
  if (!read_line(s, "> ", text))
    return FALSE;
  if (g_str_has_prefix(text->str, FENCE)) {
    read_fenced(s, text);
    return TRUE;
  }
  while (g_str_has_suffix(text->str, "\\")) {
    g_string_truncate(text, text->len - 1);
    if (!read_line(s, "… ", line))
      break;
    g_string_append_c(text, '\n');
    g_string_append_len(text, line->str, (gssize)line->len);
  }
  return TRUE;
}

/* What stands behind a command's name; NULL when it is another command. */
static const char *
argument_of(const char *text, const char *command) {
  gsize n = strlen(command);
  if (strncmp(text, command, n) != 0 || (text[n] != '\0' && text[n] != ' '))
    return NULL;
  return text[n] == ' ' ? text + n + 1 : text + n;
}

static void
save(const session *s, const char *path) {
  g_autoptr(GError) error = NULL;
  if (*path == '\0')
    fprintf(stderr, "octet chat: /save FILE: which file?\n");
  else if (!oct_talk_save(s->talk, s->model, path, &error))
    fprintf(stderr, "octet chat: %s\n", error->message);
  else
    fprintf(stderr, "[%u messages in %s]\n", oct_talk_n_messages(s->talk), path);
}

/* FALSE: leave. */
static gboolean
obey(session *s, const char *text) {
  const char *argument;
  if (argument_of(text, "/exit") != NULL || argument_of(text, "/quit") != NULL)
    return FALSE;
  if (argument_of(text, "/reset") != NULL)
    oct_talk_reset(s->talk);
  else if ((argument = argument_of(text, "/system")) != NULL)
    oct_talk_set_system(s->talk, argument);
  else if ((argument = argument_of(text, "/save")) != NULL)
    save(s, argument);
  else {
    if (argument_of(text, "/help") == NULL)
      fprintf(stderr, "octet chat: there is no command %s\n", text);
    fputs(help_text, stderr);
  }
  return TRUE;
}

/* TRUE: every question was answered. */
static gboolean
converse(session *s) {
  g_autoptr(GString) text = g_string_new(NULL);
  gboolean good = TRUE;
  if (s->is_terminal)
    fprintf(stderr, "%s at %s; /help tells more\n", s->model, oct_client_url(s->client));
  for (;;) {
    interrupted = 0;
    if (!read_text(s, text)) {
      if (!interrupted || !s->is_terminal)
        break;
      clearerr(stdin);
      fputc('\n', stdout);
      continue;
    }
    if (*text->str == '\0')
      continue;
    if (*text->str != '/')
      good &= ask(s, text->str);
    else if (!obey(s, text->str))
      break;
  }
  return good;
}

/* --- a server of its own ---------------------------------------------------------------------- */

static gboolean
start_local(oct_local_server *l, const options *o, const char *model, GError **error) {
  const char *args[] = {model, "--disable-access-log", "--backend",
                        o->backend != NULL ? o->backend : "cpu", NULL};
  return oct_local_server_start(l, NULL, args, error);
}

/* Why it is not there: its last words. */
static void
explain(const oct_local_server *l, GError **error) {
  g_autofree char *last = oct_local_server_last_words(l);
  if (last == NULL)
    return;
  g_clear_error(error);
  g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER, "%s", last);
}

/* The model's name, once the server answers. */
static char *
wait_for_server(const oct_local_server *l, const options *o, oct_client *client, GError **error) {
  gint64 end = oct_client_now_ns() + (l->pid > 0 ? LOCAL_NS : REMOTE_NS);
  while (!interrupted) {
    g_autoptr(GError) why = NULL;
    gint64 now = oct_client_now_ns();
    char *model = oct_server_wait(&o->server, client, MIN(end, now + NS_PER_S / 2), &why);
    if (model != NULL)
      return model;
    if (now >= end || oct_local_server_has_ended(l)) {
      g_propagate_error(error, g_steal_pointer(&why));
      explain(l, error);
      return NULL;
    }
  }
  g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER, "interrupted");
  return NULL;
}

/* --- the command ------------------------------------------------------------------------------ */

static gboolean
is_url(const char *text) {
  return strstr(text, "://") != NULL || g_str_has_prefix(text, "unix:") ||
         g_str_has_prefix(text, "localhost:") || g_ascii_isdigit(*text);
}

static gboolean
read_options(const options *o, session *s, GError **error) {
  char *end;
  s->temperature = -1;
  if (o->temperature != NULL) {
    s->temperature = g_ascii_strtod(o->temperature, &end);
    if (end == o->temperature || *end != '\0' || !(s->temperature >= 0 && s->temperature <= 2))
      return oct_cli_bad_option(error, "temperature", o->temperature, "must be from 0 to 2");
  }
  if (o->max_tokens != NULL &&
      !g_ascii_string_to_unsigned(o->max_tokens, 10, 1, G_MAXINT32, &s->max_tokens, NULL))
    return oct_cli_bad_option(error, "max-tokens", o->max_tokens, "must be a whole number above 0");
  return TRUE;
}

static gboolean
talk(const options *o, session *s, oct_local_server *l, const char *where, GError **error) {
  g_autofree char *url = g_strdup(where);
  if (!is_url(where)) {
    if (!start_local(l, o, where, error))
      return FALSE;
    g_free(url);
    url = g_strconcat("unix:", l->socket, NULL);
  }
  if ((s->client = oct_server_open(&o->server, url, error)) == NULL ||
      (s->model = wait_for_server(l, o, s->client, error)) == NULL)
    return FALSE;
  if (!converse(s))
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER,
                "not every question was answered");
  return *error == NULL;
}

static int
run(const options *o, const char *where) {
  GError *error = NULL;
  oct_local_server l = {0};
  session s = {.talk = oct_talk_new(), .answer = g_string_new(NULL)};
  int status = OCT_EXIT_OK;
  /* No SA_RESTART: Ctrl-C ends the wait for a line. */
  struct sigaction action = {.sa_handler = on_signal};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  s.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  if (o->system != NULL)
    oct_talk_set_system(s.talk, o->system);
  gboolean good = read_options(o, &s, &error) && talk(o, &s, &l, where, &error);
  if (!good && (g_error_matches(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION) ||
                g_error_matches(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION))) {
    status = oct_cli_refuse(COMMAND, "%s", error->message);
    g_error_free(error);
  } else if (!good) {
    status = oct_cli_fail(COMMAND, error);
  }
  oct_client_free(s.client);
  oct_talk_free(s.talk);
  g_string_free(s.answer, TRUE);
  g_free(s.model);
  oct_local_server_stop(&l);
  return status;
}

int
oct_cmd_chat(int argc, char **argv) {
  options o = {0};
  const GOptionEntry own[] = {
      {"system", 0, 0, G_OPTION_ARG_STRING, &o.system, "how to behave", "TEXT"},
      {"max-tokens", 0, 0, G_OPTION_ARG_STRING, &o.max_tokens,
       "of an answer; default: as the server has it", "N"},
      {"temperature", 0, 0, G_OPTION_ARG_STRING, &o.temperature,
       "0 is the likeliest answer; default: as the server has it", "X"},
      {"backend", 0, 0, G_OPTION_ARG_STRING, &o.backend,
       "of a model that is served for this: as octet serve takes it (cpu)", "B"},
  };
  GOptionEntry entries[OCT_SERVER_FLAGS + G_N_ELEMENTS(own) + 1] = {0};
  guint n = oct_server_flags_entries(&o.server, entries);
  memcpy(entries + n, own, sizeof own);
  g_autofree char *details = g_strdup_printf(
      "URL is http://HOST:PORT[/PREFIX], HOST:PORT of digits or localhost, or unix:PATH; the\n"
      "default is http://127.0.0.1:8000. Anything else is a MODEL as octet serve takes it, which\n"
      "is then served for this conversation alone. Where input or output is no terminal each line\n"
      "of input is a question, and output is the answers alone.\n\n%s",
      help_text);
  const oct_cli_usage usage = {
      .command = COMMAND,
      .arguments = "[URL|MODEL]",
      .summary = "Talks to a model.",
      .details = details,
      .entries = entries,
      .max_arguments = 1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = run(&o, argc > 1 ? argv[1] : "http://127.0.0.1:8000");
  oct_server_flags_clear(&o.server);
  g_free(o.system);
  g_free(o.max_tokens);
  g_free(o.temperature);
  g_free(o.backend);
  return status;
}
