// The flags of the commands that ask a model.

#include <unistd.h>

#include <iostream>

#include "cli/commands.h"
#include "cli/line_editor.h"

namespace shoal::cli {
namespace {

void AddModel(CLI::App* app, std::string* model) {
  Option(app, "-m,--model", model, "default: the model served")->type_name("NAME");
}

// `temperature` and `penalty` say what their defaults are.
void AddSampling(CLI::App* app, SamplingFlags* flags, const std::string& temperature,
                 const std::string& penalty) {
  AddModel(app, &flags->model);
  Option(app, "--max-tokens", &flags->max_tokens, "of an answer; 0: to the end of the context")
      ->type_name("N")
      ->capture_default_str();
  Option(app, "--min-tokens", &flags->min_tokens, "before which an answer does not end")
      ->type_name("N");
  Option(app, "-t,--temperature", &flags->temperature,
         "0: always the likeliest token. Default: " + temperature)
      ->check(Within(0, 100));
  Option(app, "--top-p", &flags->top_p, "sample from the likeliest tokens of this total")
      ->check(Within(0, 1, "", Minimum::kExcluded));
  Option(app, "--top-k", &flags->top_k, "sample from this many tokens; 0: all")->type_name("N");
  Option(app, "--min-p", &flags->min_p, "leave out tokens below this part of the likeliest")
      ->check(Within(0, 1));
  Option(app, "--repetition-penalty", &flags->repetition_penalty,
         "over prompt and output; 1: none. Default: " + penalty)
      ->check(Within(0, 100, "", Minimum::kExcluded));
  Option(app, "--presence-penalty", &flags->presence_penalty, "over output; 0: none")
      ->check(Within(-2, 2));
  Option(app, "--frequency-penalty", &flags->frequency_penalty, "over output; 0: none")
      ->check(Within(-2, 2));
  Option(app, "--logit-bias", &flags->logit_bias,
         "added to the logit of a token, as in 42:-100; may be repeated")
      ->type_name("ID:BIAS")
      ->allow_extra_args(false);
  Option(app, "--seed", &flags->seed, "default: chosen by the router")->type_name("N");
  Option(app, "--stop", &flags->stop,
         "end at this text, which is left out; \\n, \\t, \\r and \\\\ have their meaning; may be "
         "repeated")
      ->allow_extra_args(false);
  app->add_flag("--ignore-eos", flags->ignore_eos, "do not end at an end-of-generation token");
  Option(app, "--priority", &flags->priority, "among requests that wait; default: normal")
      ->check(CLI::IsMember({"low", "normal", "high"}));
  Option(app, "--cache-salt", &flags->cache_salt,
         "share cached prefixes only with requests of the same salt");
  app->add_flag("--stats", flags->stats, "tokens and times of every answer, on stderr");
}

Command AddGenerate(CLI::App* root, SessionFlags* session, GenerateFlags* flags) {
  CLI::App* app = root->add_subcommand("generate", "continue a text, or answer a message");
  Option(app, "PROMPT", &flags->words,
         "the text, of one word or more; - or, if it is no terminal, none: all of stdin");
  AddServer(app, session);
  AddSampling(app, &flags->sampling, "0, or 1 with --top-p, --top-k, --min-p, --seed or -n", "1");
  app->add_flag("--chat", flags->chat, "PROMPT is a user's message: use the chat template");
  Option(app, "--system", &flags->system, "system message, with --chat");
  app->add_flag("--prompt-ids", flags->prompt_ids, "PROMPT is token ids: \"1,2,3\"");
  Option(app, "-n", &flags->n, "answers, each with noise of its own")
      ->check(Within(1, 64))
      ->capture_default_str();
  Option(app, "--logprobs", &flags->logprobs, "show each token with this many likeliest ones")
      ->check(Within(0, 20));
  app->add_flag("--ids", flags->ids, "print the token ids instead of the text");
  app->add_flag("--echo", flags->echo, "print the prompt first");
  app->add_flag("--no-stream", flags->no_stream, "print when all is there");
  Option(app, "--request-id", &flags->request_id,
         "name of the request; default: made by the router");
  AddOutput(app, session);
  AddTimeout(app, session, "none");
  return {app, [=] {
            if (flags->words.empty() && isatty(STDIN_FILENO) == 1) {
              return FailUsage("PROMPT is missing: give a text, or - to read stdin");
            }
            return WithSession(*session,
                               [=](const Session& s) { return RunGenerate(s, *flags, &std::cin); });
          }};
}

int Chat(const Session& session, const ChatFlags& flags) {
  if (!flags.is_interactive) {
    return RunChat(session, flags, [](std::string* line) {
      return static_cast<bool>(std::getline(std::cin, *line));
    });
  }
  LineEditor editor("> ");
  session.interrupt->BeginConversation(&LineEditor::RestoreTerminal);
  return RunChat(session, flags, [&](std::string* line) { return editor.Read(line); });
}

Command AddChat(CLI::App* root, SessionFlags* session, ChatFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "chat",
      "a conversation: every line of stdin is a message. Ctrl-C stops an answer, Ctrl-D ends.\n"
      "In a terminal /help lists commands.");
  AddServer(app, session);
  AddSampling(app, &flags->sampling, "0.7", "1.1 unless --temperature is 0");
  Option(app, "--system", &flags->system, "system message");
  AddTimeout(app, session, "none");
  return {app, [=] {
            flags->is_interactive = isatty(STDIN_FILENO) == 1;
            return WithSession(*session, [=](const Session& s) { return Chat(s, *flags); });
          }};
}

Command AddTokenize(CLI::App* root, SessionFlags* session, TokenizeFlags* flags) {
  CLI::App* app = root->add_subcommand("tokenize", "text to token ids");
  // May be empty, which is a text too.
  app->add_option("TEXT", flags->text, "the text; -: all of stdin")->required();
  AddServer(app, session);
  AddModel(app, &flags->model);
  app->add_flag("--no-special", flags->no_special, "add no begin-of-sequence token");
  app->add_flag("--parse-special", flags->parse_special, "\"<|im_end|>\" is one token, not text");
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] {
            return WithSession(*session,
                               [=](const Session& s) { return RunTokenize(s, *flags, &std::cin); });
          }};
}

Command AddDetokenize(CLI::App* root, SessionFlags* session, DetokenizeFlags* flags) {
  CLI::App* app = root->add_subcommand("detokenize", "token ids to text");
  Option(app, "IDS", &flags->ids, "1 2 3, or 1,2,3; -: stdin")->required();
  AddServer(app, session);
  AddModel(app, &flags->model);
  app->add_flag("--keep-special", flags->keep_special, "show special tokens");
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] {
            return WithSession(
                *session, [=](const Session& s) { return RunDetokenize(s, *flags, &std::cin); });
          }};
}

}  // namespace

std::vector<Command> AddInferenceCommands(CLI::App* root, AllFlags* flags) {
  SessionFlags* session = &flags->session;
  return {AddGenerate(root, session, &flags->generate), AddChat(root, session, &flags->chat),
          AddTokenize(root, session, &flags->tokenize),
          AddDetokenize(root, session, &flags->detokenize)};
}

}  // namespace shoal::cli
