// The flags of the commands that look at a cluster, and of the one that loads it.

#include <poll.h>
#include <unistd.h>

#include <random>

#include "absl/time/clock.h"
#include "cli/command_cluster.h"
#include "cli/commands.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

constexpr char kClearScreen[] = "\033[H\033[2J";

void AddWatch(CLI::App* app, double* watch_s) {
  Option(app, "-w,--watch", watch_s, "show it again and again, at this distance, until Ctrl-C")
      ->check(Within(0.01, 86400, "SECONDS"));
}

// Runs `command` once, or until it fails.
int Watch(const SessionFlags& flags, double watch_s,
          const std::function<int(const Session&)>& command) {
  return WithSession(flags, [&](const Session& session) {
    while (true) {
      if (watch_s > 0 && session.out_is_terminal) *session.out << kClearScreen;
      const int code = command(session);
      if (watch_s <= 0 || code != kExitOk || session.out->bad()) return code;
      poll(nullptr, 0, static_cast<int>(watch_s * 1000));  // Ctrl-C ends the process
    }
  });
}

Command AddModels(CLI::App* root, SessionFlags* session) {
  CLI::App* app = root->add_subcommand("models", "the models served");
  AddServer(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] { return WithSession(*session, RunModels); }};
}

Command AddStatus(CLI::App* root, SessionFlags* session, double* watch_s) {
  CLI::App* app = root->add_subcommand("status", "the cluster and its workers");
  AddAdmin(app, session);
  AddOutput(app, session);
  AddWatch(app, watch_s);
  AddTimeout(app, session, "10");
  return {app, [=] { return Watch(*session, *watch_s, RunStatus); }};
}

Command AddPs(CLI::App* root, SessionFlags* session, double* watch_s) {
  CLI::App* app = root->add_subcommand("ps", "the requests that run or wait");
  AddAdmin(app, session);
  AddOutput(app, session);
  AddWatch(app, watch_s);
  AddTimeout(app, session, "10");
  return {app, [=] {
            return Watch(*session, *watch_s,
                         [](const Session& s) { return RunPs(s, absl::Now()); });
          }};
}

Command AddCancel(CLI::App* root, SessionFlags* session, CancelFlags* flags) {
  CLI::App* app = root->add_subcommand("cancel", "end a request");
  Option(app, "ID", &flags->request_id, "as `ps` shows it")->required();
  Option(app, "--reason", &flags->reason, "told to its client");
  AddAdmin(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] {
            return WithSession(*session, [=](const Session& s) {
              return RunCancel(s, flags->request_id, flags->reason);
            });
          }};
}

Command AddHealth(CLI::App* root, SessionFlags* session, std::string* service) {
  CLI::App* app = root->add_subcommand("health",
                                       "for probes: exit 0 if the router is ready, 4 if not, 3 if "
                                       "nobody answers, more for an error");
  // May be empty: that is the name of liveness.
  app->add_option("--service", *service, "of grpc.health.v1; \"\": is it alive")
      ->capture_default_str();
  AddServer(app, session);
  AddOutput(app, session);
  AddTimeout(app, session, "10");
  return {app, [=] {
            return WithSession(*session, [=](const Session& s) { return RunHealth(s, *service); });
          }};
}

Command AddTrace(CLI::App* root, SessionFlags* session, TraceFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "trace",
      "record what the router and every rank do in the next steps, and say where a step's time\n"
      "goes. The file is for https://ui.perfetto.dev or chrome://tracing.");
  Option(app, "--steps", &flags->steps, "to record")->check(Within(1, 1000))->capture_default_str();
  Option(app, "-o,--output", &flags->path, "file that the trace is written to; without: none is")
      ->type_name("FILE");
  Option(app, "--wait", &flags->wait_s, "for as many steps; then what there is")
      ->check(Within(0.001, 600, "SECONDS"))
      ->capture_default_str();
  AddAdmin(app, session);
  return {app, [=] {
            return WithSession(*session, [=](const Session& s) { return RunTrace(s, *flags); });
          }};
}

void AddLoad(CLI::App* app, BenchFlags* flags) {
  CLI::Option* clients =
      Option(app, "--clients", &flags->clients, "clients with one request at a time each")
          ->check(Within(1, 4096))
          ->capture_default_str();
  Option(app, "--rate", &flags->rate, "requests a second instead, at random (Poisson) moments")
      ->check(Within(1e-3, 1e5))
      ->excludes(clients);
  Option(app, "--requests", &flags->load.num_requests, "requests that are measured")
      ->check(Within(1, 1000000, "N"))
      ->capture_default_str();
  Option(app, "--prompt-tokens", &flags->load.prompt_tokens, "of each request")
      ->check(Within(1, 1 << 20, "N"))
      ->capture_default_str();
  Option(app, "--output-tokens", &flags->output_tokens, "of each request")
      ->check(Within(1, 1 << 20, "N"))
      ->capture_default_str();
  Option(app, "--shared-prefix", &flags->load.shared_prefix_tokens,
         "tokens at the start of all prompts that are the same")
      ->type_name("N")
      ->capture_default_str();
  Option(app, "--distinct", &flags->load.num_distinct,
         "different prompts, taken in turn; 0: every request has its own")
      ->type_name("N")
      ->capture_default_str();
  Option(app, "--warmup", &flags->warmup, "requests before, not measured; default: --clients")
      ->check(Within(0, 100000, "N"));
}

Command AddBench(CLI::App* root, SessionFlags* session, BenchFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "bench", "measure a router with random prompts of exact lengths; equal seeds, equal load");
  AddServer(app, session);
  Option(app, "-m,--model", &flags->model, "default: the model served")->type_name("NAME");
  AddLoad(app, flags);
  const CLI::Option* seed =
      Option(app, "--seed", &flags->load.seed,
             "of the prompts and of the moments; default: a new one, since a router has the "
             "prompts of an old one in its prefix cache")
          ->type_name("N");
  Option(app, "-o,--output", &session->output, "table for people; json: one object, stable")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  AddTimeout(app, session, "none");
  return {app, [=] {
            if (seed->count() == 0) flags->load.seed = std::random_device()();
            flags->show_progress = isatty(STDERR_FILENO) == 1;
            return WithSession(*session, [=](const Session& s) { return RunBench(s, *flags); });
          }};
}

}  // namespace

std::vector<Command> AddClusterCommands(CLI::App* root, AllFlags* flags) {
  SessionFlags* session = &flags->session;
  return {AddModels(root, session),
          AddStatus(root, session, &flags->watch_s),
          AddPs(root, session, &flags->watch_s),
          AddCancel(root, session, &flags->cancel),
          AddHealth(root, session, &flags->health_service),
          AddBench(root, session, &flags->bench),
          AddTrace(root, session, &flags->trace)};
}

}  // namespace shoal::cli
