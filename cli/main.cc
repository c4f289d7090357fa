// shoalctl: runs a Shoal cluster on this machine, and talks to one anywhere.

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command_bench.h"
#include "cli/command_chat.h"
#include "cli/command_cluster.h"
#include "cli/command_generate.h"
#include "cli/command_serve.h"
#include "cli/command_tokens.h"
#include "cli/completion.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

constexpr const char* kExitCodes =
    "Data is on stdout, everything else on stderr, errors as \"error: ...\". Exit codes: 0 ok,\n"
    "1 failure, 2 wrong usage, 3 cannot connect, 4 unhealthy, 64 + gRPC code for a call that\n"
    "failed, 130 on Ctrl-C. `shoalctl --help-all` shows the options of every command.";

// A command, and what runs it when it was the one named.
using Run = std::function<int()>;
struct Command {
  CLI::App* app;
  Run run;
};

// What the commands share.
struct SessionFlags {
  Session session{&std::cout, &std::cerr};
  std::string output = "table";
  double timeout_s = 0;
};

// A value that is not empty and, for a number, is one that T can hold: CLI11 alone lets "" and NaN
// through, and cuts what is too large.
template <typename T>
std::string WhyMalformed(const std::string& value) {
  if (value.empty()) return "must not be empty";
  if constexpr (std::is_integral_v<T>) {
    T number;
    if (!absl::SimpleAtoi(value, &number)) {
      return absl::StrCat(value, " is not a whole number from ", std::numeric_limits<T>::min(),
                          " to ", std::numeric_limits<T>::max());
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    double number;
    if (!absl::SimpleAtod(value, &number) || !std::isfinite(number)) {
      return absl::StrCat(value, " is not a number");
    }
  }
  return "";
}

template <typename T>
struct ValueOf {
  using type = T;
};
template <typename T>
struct ValueOf<std::optional<T>> {
  using type = T;
};

CLI::Validator NotEmpty() { return CLI::Validator(WhyMalformed<std::string>, ""); }

template <typename T>
CLI::Option* Option(CLI::App* app, const std::string& name, T* value, const std::string& help) {
  return app->add_option(name, *value, help)
      ->check(CLI::Validator(WhyMalformed<typename ValueOf<T>::type>, ""));
}

void AddServer(CLI::App* app, SessionFlags* flags) {
  Option(app, "--server", &flags->session.server, "the router's address")
      ->envname("SHOAL_SERVER")
      ->capture_default_str();
}

void AddAdmin(CLI::App* app, SessionFlags* flags) {
  Option(app, "--admin", &flags->session.admin, "the router's address for operators")
      ->envname("SHOAL_ADMIN")
      ->capture_default_str();
}

void AddTimeout(CLI::App* app, SessionFlags* flags, const std::string& value) {
  Option(app, "--timeout", &flags->timeout_s, "seconds a call may take; default: " + value)
      ->check(CLI::Range(0.001, 1e9));
}

void AddOutput(CLI::App* app, SessionFlags* flags) {
  Option(app, "-o,--output", &flags->output, "table, or json: protobuf's JSON, stable")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

// The session of a command that calls a router. The process gets its threads here.
Session Open(const SessionFlags& flags) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are told by us, once
  Session session = flags.session;
  session.format = flags.output == "json" ? Format::kJson : Format::kTable;
  session.timeout = absl::Seconds(flags.timeout_s);
  session.interrupt = Interrupt::Install();
  session.out_is_terminal = isatty(STDOUT_FILENO) == 1;
  return session;
}

void AddSampling(CLI::App* app, SamplingFlags* flags) {
  Option(app, "--model", &flags->model, "default: the model served");
  Option(app, "--max-tokens", &flags->max_tokens, "default: to the end of the context");
  Option(app, "--temperature", &flags->temperature,
         "0: always the likeliest token. Default: 0, or 1 with --top-p, --top-k, --min-p, --seed "
         "or -n")
      ->check(CLI::Range(0.0, 100.0));
  Option(app, "--top-p", &flags->top_p, "sample from the likeliest tokens of this total")
      ->check(CLI::Range(0.0, 1.0));
  Option(app, "--top-k", &flags->top_k, "sample from this many tokens; 0: all");
  Option(app, "--min-p", &flags->min_p, "leave out tokens below this part of the likeliest")
      ->check(CLI::Range(0.0, 1.0));
  Option(app, "--repetition-penalty", &flags->repetition_penalty, "1: none")
      ->check(CLI::Range(0.0, 100.0));
  Option(app, "--seed", &flags->seed, "default: chosen by the router");
  Option(app, "--stop", &flags->stop, "end at this text, which is left out; may be repeated")
      ->allow_extra_args(false);
  app->add_flag("--ignore-eos", flags->ignore_eos, "do not end at an end-of-generation token");
}

Command AddServe(CLI::App* root, ServeFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "serve",
      "run a router and its ranks on this machine until SIGTERM or Ctrl-C, which lets running\n"
      "requests finish; a second one does not. Prints READY with the addresses when it serves.");
  Option(app, "MODEL", &flags->model, "GGUF file")->required();
  Option(app, "--tp,--tensor-parallel-size", &flags->tp, "ranks that share the model")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  Option(app, "--threads", &flags->threads, "compute threads of each rank; default: CPUs / ranks")
      ->check(CLI::Range(1, 1024));
  Option(app, "--cpus", &flags->cpus, "CPUs for the ranks, split among them: 0-3,8");
  Option(app, "--isa", &flags->isa, "instruction set; all give the same bits")
      ->check(CLI::IsMember({"auto", "avx512", "avx2", "portable"}))
      ->capture_default_str();
  app->add_flag("--no-spin", flags->no_spin, "ranks never spin while they wait for each other");

  // What goes to the router as it is, only if it is given: defaults and environment are its own.
  const auto pass = [&](const std::string& name, const std::string& help) {
    return app
        ->add_option_function<std::string>(
            name,
            [flags, name](const std::string& value) {
              flags->router_args.push_back(name);
              flags->router_args.push_back(value);
            },
            help)
        ->type_name("TEXT")
        ->check(NotEmpty());
  };
  pass("--listen", "address for clients; port 0 takes any [127.0.0.1:8500]");
  pass("--admin-listen", "address for operators [127.0.0.1:8501]");
  pass("--model-name", "name for clients; default: the model's own");
  pass("--max-batch-tokens", "tokens of one step [512]")->check(CLI::Range(1, 65536));
  pass("--max-batch-seqs", "sequences of one step [64]")->check(CLI::Range(1, 4096));
  pass("--max-seq-len", "tokens of prompt and output; 0: the model's context [0]")
      ->check(CLI::Range(0u, UINT32_MAX));
  pass("--max-prefill-chunk", "tokens of one prompt in one step; 0: max-batch-tokens [0]")
      ->check(CLI::Range(0u, UINT32_MAX));
  pass("--max-queued-requests", "sequences that may wait; more are refused [256]")
      ->check(CLI::Range(0, 1 << 20));
  pass("--max-plans-in-flight", "steps planned before the first of them is answered [2]")
      ->check(CLI::Range(1, 2));
  pass("--kv-cache-bytes", "of each rank: 500000000 or 2GiB; 0: what fits [0]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  pass("--kv-cache-dtype", "f16, bf16, int8 or f32: int8 takes half the memory of f16 [f16]")
      ->check(CLI::IsMember({"f16", "bf16", "int8", "f32"}));
  pass("--startup-timeout", "seconds until the ranks are ready [600]")
      ->check(CLI::Range(0.001, 1e6));
  pass("--recovery-timeout", "seconds that streams wait for a lost rank [60]")
      ->check(CLI::Range(0.001, 1e6));
  pass("--drain-timeout", "seconds that requests have to finish after SIGTERM [30]")
      ->check(CLI::Range(0.0, 1e6));
  app->add_flag_callback(
      "--no-prefix-cache", [flags] { flags->router_args.push_back("--no-prefix-cache"); },
      "compute every prompt anew");
  return {app, [flags] { return RunServe(*flags); }};
}

Command AddGenerate(CLI::App* root, SessionFlags* session, GenerateFlags* flags) {
  CLI::App* app = root->add_subcommand("generate", "continue a text, or answer a message");
  Option(app, "PROMPT", &flags->prompt, "the text; -: all of stdin")->required();
  AddServer(app, session);
  AddSampling(app, &flags->sampling);
  app->add_flag("--chat", flags->chat, "PROMPT is a user's message: use the chat template");
  Option(app, "--system", &flags->system, "system message, with --chat");
  app->add_flag("--prompt-ids", flags->prompt_ids, "PROMPT is token ids: \"1,2,3\"");
  Option(app, "-n", &flags->n, "answers, each with noise of its own")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  Option(app, "--logprobs", &flags->logprobs, "show each token with this many likeliest ones")
      ->check(CLI::Range(0, 20));
  app->add_flag("--ids", flags->ids, "print the token ids instead of the text");
  app->add_flag("--no-stream", flags->no_stream, "print when all is there");
  Option(app, "--request-id", &flags->request_id,
         "name of the request; default: made by the router");
  AddOutput(app, session);
  AddTimeout(app, session, "none");
  return {app, [=] { return RunGenerate(Open(*session), *flags, &std::cin); }};
}

Command AddChat(CLI::App* root, SessionFlags* session, ChatFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "chat",
      "a conversation: every line of stdin is a message. Ctrl-C stops an answer, Ctrl-D ends.");
  AddServer(app, session);
  AddSampling(app, &flags->sampling);
  Option(app, "--system", &flags->system, "system message");
  AddTimeout(app, session, "none");
  return {app, [=] {
            flags->is_interactive = isatty(STDIN_FILENO) == 1;
            return RunChat(Open(*session), *flags, &std::cin);
          }};
}

Command AddTokenize(CLI::App* root, SessionFlags* session, TokenizeFlags* flags) {
  CLI::App* app = root->add_subcommand("tokenize", "text to token ids");
  Option(app, "TEXT", &flags->text, "the text; -: all of stdin")->required();
  AddServer(app, session);
  Option(app, "--model", &flags->model, "default: the model served");
  app->add_flag("--no-special", flags->no_special, "add no begin-of-sequence token");
  app->add_flag("--parse-special", flags->parse_special, "\"<|im_end|>\" is one token, not text");
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunTokenize(Open(*session), *flags, &std::cin); }};
}

Command AddDetokenize(CLI::App* root, SessionFlags* session, DetokenizeFlags* flags) {
  CLI::App* app = root->add_subcommand("detokenize", "token ids to text");
  Option(app, "IDS", &flags->ids, "1 2 3, or 1,2,3; -: stdin")->required();
  AddServer(app, session);
  Option(app, "--model", &flags->model, "default: the model served");
  app->add_flag("--keep-special", flags->keep_special, "show special tokens");
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunDetokenize(Open(*session), *flags, &std::cin); }};
}

Command AddModels(CLI::App* root, SessionFlags* session) {
  CLI::App* app = root->add_subcommand("models", "the models served");
  AddServer(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunModels(Open(*session)); }};
}

Command AddStatus(CLI::App* root, SessionFlags* session) {
  CLI::App* app = root->add_subcommand("status", "the cluster and its workers");
  AddAdmin(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunStatus(Open(*session)); }};
}

Command AddPs(CLI::App* root, SessionFlags* session) {
  CLI::App* app = root->add_subcommand("ps", "the requests that run or wait");
  AddAdmin(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunPs(Open(*session), absl::Now()); }};
}

struct CancelFlags {
  std::string request_id;
  std::string reason = "cancelled by an operator";
};

Command AddCancel(CLI::App* root, SessionFlags* session, CancelFlags* flags) {
  CLI::App* app = root->add_subcommand("cancel", "end a request");
  Option(app, "ID", &flags->request_id, "as `ps` shows it")->required();
  Option(app, "--reason", &flags->reason, "told to its client")->capture_default_str();
  AddAdmin(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunCancel(Open(*session), flags->request_id, flags->reason); }};
}

Command AddHealth(CLI::App* root, SessionFlags* session, std::string* service) {
  CLI::App* app =
      root->add_subcommand("health", "exit 0 if the router is ready, 4 if not: for probes");
  // May be empty: that is the name of liveness.
  app->add_option("--service", *service, "of grpc.health.v1; \"\": is it alive")
      ->capture_default_str();
  AddServer(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return RunHealth(Open(*session), *service); }};
}

// Its options are checked by shoal-worker, which knows what they mean.
Command AddGraph(CLI::App* root, std::vector<std::string>* args) {
  CLI::App* app = root->add_subcommand("graph", "print what a rank runs, without a cluster");
  const auto pass = [&](const std::string& name, const std::string& as, const std::string& help) {
    return app
        ->add_option_function<std::string>(
            name,
            [args, as](const std::string& value) {
              if (!as.empty()) args->push_back(as);
              args->push_back(value);
            },
            help)
        ->type_name("TEXT")
        ->check(NotEmpty());
  };
  pass("MODEL", "", "GGUF file")->required();
  pass("--tp", "--tp", "tensor parallel size [1]")->check(CLI::Range(1, 1024));
  pass("--rank", "--rank", "rank [0]")->check(CLI::Range(0, 1023));
  pass("--stage", "--stage", "built, sharded, fused or program [program]")
      ->check(CLI::IsMember({"built", "sharded", "fused", "program"}));
  pass("-o,--output", "--output", "text or dot [text]")->check(CLI::IsMember({"text", "dot"}));
  return {app, [args] { return RunGraph(*args); }};
}

Command AddBench(CLI::App* root, SessionFlags* session, BenchFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "bench", "measure a router with random prompts of exact lengths; equal seeds, equal load");
  AddServer(app, session);
  Option(app, "--model", &flags->model, "default: the model served");
  CLI::Option* clients =
      Option(app, "--clients", &flags->clients, "clients with one request at a time each")
          ->check(CLI::Range(1, 4096))
          ->capture_default_str();
  Option(app, "--rate", &flags->rate, "requests a second instead, at random (Poisson) moments")
      ->check(CLI::Range(1e-3, 1e5))
      ->excludes(clients);
  Option(app, "--requests", &flags->load.num_requests, "requests that are measured")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  Option(app, "--prompt-tokens", &flags->load.prompt_tokens, "of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  Option(app, "--output-tokens", &flags->output_tokens, "of each request")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  Option(app, "--shared-prefix", &flags->load.shared_prefix_tokens,
         "tokens at the start of all prompts that are the same")
      ->capture_default_str();
  Option(app, "--distinct", &flags->load.num_distinct,
         "different prompts, taken in turn; 0: every request has its own")
      ->capture_default_str();
  Option(app, "--warmup", &flags->warmup, "requests before, not measured; default: --clients")
      ->check(CLI::Range(0, 100000));
  Option(app, "--seed", &flags->load.seed, "of the prompts and of the moments")
      ->capture_default_str();
  AddOutput(app, session);
  AddTimeout(app, session, "none");
  return {app, [=] {
            flags->show_progress = isatty(STDERR_FILENO) == 1;
            return RunBench(Open(*session), *flags);
          }};
}

Command AddVersion(CLI::App* root) {
  CLI::App* app = root->add_subcommand("version", "the version of shoalctl");
  return {app, [] {
            std::cout << "shoalctl " << SHOAL_VERSION << std::endl;
            return kExitOk;
          }};
}

// The names of an app's options that a shell may complete.
std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

Command AddCompletion(CLI::App* root, std::string* shell) {
  CLI::App* app = root->add_subcommand("completion", "a script that completes shoalctl's options");
  app->add_option("SHELL", *shell, "bash: source <(shoalctl completion bash)")
      ->check(CLI::IsMember({"bash"}))
      ->required();
  return {app, [root] {
            std::vector<CompletedCommand> commands = {{"", OptionNames(*root)}};
            for (const CLI::App* command : root->get_subcommands([](CLI::App*) { return true; })) {
              commands.push_back({command->get_name(), OptionNames(*command)});
            }
            std::cout << BashCompletion(commands) << std::flush;
            return kExitOk;
          }};
}

// What CLI11 takes for something else, or says less clearly. Empty if all is well.
std::string FindMisuse(const CLI::App& app, int argc, char** argv) {
  if (argc < 2) return "a command is missing";
  const auto is_named = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argv[1][0] != '-' && app.get_subcommands(is_named).empty()) {
    return absl::StrCat("there is no command \"", argv[1], "\"");
  }
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    if (arg == "--") break;
    if (absl::StartsWith(arg, "--") && arg.find('=') == arg.size() - 1) {
      return absl::StrCat(arg, " has no value");  // CLI11 would take the next argument
    }
  }
  return "";
}

int FailUsage(absl::string_view message) {
  std::cerr << "Run with --help for more information.\nerror: " << message << std::endl;
  return kExitUsage;
}

int Main(int argc, char** argv) {
  CLI::App app("Runs and uses Shoal, a cluster that serves large language models.", "shoalctl");
  app.set_version_flag("--version", "shoalctl " SHOAL_VERSION);
  app.set_help_all_flag("--help-all", "the options of every command");
  app.footer(kExitCodes);
  app.require_subcommand(1);

  SessionFlags session;
  ServeFlags serve;
  GenerateFlags generate;
  ChatFlags chat;
  TokenizeFlags tokenize;
  DetokenizeFlags detokenize;
  CancelFlags cancel;
  BenchFlags bench;
  std::string service = "readiness";
  std::vector<std::string> graph_args;
  std::string shell;
  const std::vector<Command> commands = {
      AddServe(&app, &serve),
      AddGenerate(&app, &session, &generate),
      AddChat(&app, &session, &chat),
      AddTokenize(&app, &session, &tokenize),
      AddDetokenize(&app, &session, &detokenize),
      AddModels(&app, &session),
      AddStatus(&app, &session),
      AddPs(&app, &session),
      AddCancel(&app, &session, &cancel),
      AddHealth(&app, &session, &service),
      AddBench(&app, &session, &bench),
      AddGraph(&app, &graph_args),
      AddVersion(&app),
      AddCompletion(&app, &shell),
  };
  if (const std::string misuse = FindMisuse(app, argc, argv); !misuse.empty()) {
    return FailUsage(misuse);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return FailUsage(error.what());
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kExitUsage;
}

}  // namespace
}  // namespace shoal::cli

int main(int argc, char** argv) { return shoal::cli::Main(argc, argv); }
