// The flags of the commands that run a model on this machine.

#include "cli/commands.h"
#include "cli/exit_code.h"

namespace shoal::cli {
namespace {

// What goes to the router as it is, only if it is given: defaults and environment are its own.
void AddRouterOptions(CLI::App* app, ServeFlags* flags) {
  const auto pass = [&](const std::string& name, const std::string& help) {
    return PassOption(app, name, help, [flags, name](const std::string& value) {
      flags->router_args.push_back(name);
      flags->router_args.push_back(value);
    });
  };
  pass("--listen", "address for clients; port 0 takes any [127.0.0.1:8500]")
      ->type_name("HOST:PORT");
  pass("--admin-listen", "address for operators [127.0.0.1:8501]")->type_name("HOST:PORT");
  pass("--model-name", "name for clients; default: the file's, without .gguf")->type_name("NAME");
  pass("--max-batch-tokens", "tokens of one step [512]")->check(Within(1, 65536));
  pass("--max-batch-seqs", "sequences of one step [64]")->check(Within(1, 4096));
  pass("--max-seq-len", "tokens of prompt and output; 0: the model's context [0]")
      ->check(Within(0, UINT32_MAX, "N"));
  pass("--max-prefill-chunk", "tokens of one prompt in one step; 0: max-batch-tokens [0]")
      ->check(Within(0, UINT32_MAX, "N"));
  pass("--max-queued-requests", "sequences that may wait; more are refused [256]")
      ->check(Within(0, 1 << 20, "N"));
  pass("--max-plans-in-flight",
       "steps planned before the first of them is answered [one for each stage, 2 without --pp]")
      ->check(Within(1, 17));
  pass("--stage-layers", "layers of each stage: 17,13; default: so that all read as many weights")
      ->type_name("N,...");
  pass("--profile",
       "latency: tokens come at most some 50 ms apart, however long the prompts beside them; "
       "balanced: 100 ms; throughput: steps as large as --max-batch-tokens [auto: balanced]")
      ->check(CLI::IsMember({"auto", "latency", "balanced", "throughput"}));
  pass("--inter-token-target",
       "between tokens, that prompts beside them may make; 0: any [the profile's]")
      ->check(Within(0.0, 1e6, "SECONDS"));
  pass("--kv-cache-bytes",
       "of each rank: 500000000 or 2GiB; 0: what its memory holds, at most 40 % of it. Address "
       "space until used [0]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false).description("SIZE"));
  pass("--kv-cache-dtype", "[f16]")->check(CLI::IsMember({"f16", "bf16", "int8", "f32"}));
  pass("--startup-timeout", "until the ranks are ready [600]")
      ->check(Within(0.001, 1e6, "SECONDS"));
  pass("--step-timeout",
       "that ranks have for a step, or ten times what it should take if that is more; a rank that "
       "then answers nothing is killed and started again [5]")
      ->check(Within(0.1, 1e6, "SECONDS"));
  pass("--recovery-timeout", "that streams wait for a lost rank [60]")
      ->check(Within(0.001, 1e6, "SECONDS"));
  pass("--record", "file for the history of scheduling, for replay: prompts and answers are in it")
      ->type_name("FILE");
  pass("--record-limit", "where a recording ends [1GiB]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false).description("SIZE"));
  pass("--drain-timeout", "that requests have to finish after SIGTERM [30]")
      ->check(Within(0.0, 1e6, "SECONDS"));
  app->add_flag_callback(
      "--no-prefix-cache", [flags] { flags->router_args.push_back("--no-prefix-cache"); },
      "compute every prompt anew");
}

Command AddServe(CLI::App* root, ServeFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "serve",
      "run a router and its ranks on this machine until SIGTERM or Ctrl-C, which lets running\n"
      "requests finish; a second one does not. Prints READY with the addresses when it serves.");
  app->footer(
      "From --listen on, an option that is not given may stand in the environment: SHOAL_LISTEN,\n"
      "SHOAL_ADMIN_LISTEN, SHOAL_MAX_BATCH_TOKENS and so on.");
  Option(app, "MODEL", &flags->model, "GGUF file")->required();
  Option(app, "--tp,--tensor-parallel-size", &flags->tp, "ranks that share each layer")
      ->check(Within(1, 8))
      ->capture_default_str();
  Option(app, "--pp,--pipeline-parallel-size", &flags->pp,
         "stages, each of --tp ranks with a part of the layers")
      ->check(Within(1, 16))
      ->capture_default_str();
  Option(app, "--threads", &flags->threads, "compute threads of each rank; default: CPUs / ranks")
      ->check(Within(1, 1024));
  Option(app, "--cpus", &flags->cpus, "CPUs for the ranks, split among them: 0-3,8");
  Option(app, "--isa", &flags->isa, "instruction set; all give the same bits")
      ->check(CLI::IsMember({"auto", "amx", "avx512", "avx2", "portable"}))
      ->capture_default_str();
  app->add_flag("--no-spin", flags->no_spin, "ranks never spin while they wait for each other");
  AddRouterOptions(app, flags);
  return {app, [flags] { return RunServe(*flags); }};
}

// Its options are checked by shoal-worker, which knows what they mean.
Command AddGraph(CLI::App* root, GraphFlags* flags) {
  CLI::App* app = root->add_subcommand("graph", "print what a rank runs, without a cluster");
  Option(app, "MODEL", &flags->model, "GGUF file")->required();
  Option(app, "--tp", &flags->tp, "tensor parallel size")
      ->check(Within(1, 8))
      ->capture_default_str();
  Option(app, "--pp", &flags->pp, "pipeline stages")->check(Within(1, 16))->capture_default_str();
  Option(app, "--rank", &flags->rank, "stage * tp + shard, below tp * pp")
      ->check(Within(0, 127))
      ->capture_default_str();
  const auto pass = [&](const std::string& name, const std::string& as, const std::string& help) {
    return PassOption(app, name, help, [flags, as](const std::string& value) {
      flags->args.push_back(as);
      flags->args.push_back(value);
    });
  };
  pass("--stage", "--stage", "of the lowering [program]")
      ->check(CLI::IsMember({"built", "sharded", "split", "fused", "program"}));
  pass("--stage-layers", "--stage-layers", "layers of each pipeline stage; see serve")
      ->type_name("N,...");
  pass("-o,--output", "--output", "[text]")->check(CLI::IsMember({"text", "dot"}));
  return {app, [flags] {
            const int num_ranks = flags->tp * flags->pp;
            if (flags->rank < num_ranks) return RunGraph(*flags);
            return FailUsage(absl::StrCat("--rank ", flags->rank, " is not below ", num_ranks,
                                          ", the number of ranks (--tp times --pp)"));
          }};
}

// As AddGraph: shoal-worker checks what is in the options.
Command AddPlan(CLI::App* root, PlanFlags* flags) {
  CLI::App* app = root->add_subcommand(
      "plan",
      "what each rank of a model would take and how much context fits, without a cluster;\n"
      "exit 1, with what to change, if it does not fit");
  PassOption(app, "MODEL", "GGUF file", [flags](const std::string& value) {
    flags->args.push_back(value);
  })->required();
  const auto pass = [&](const std::string& name, const std::string& as, const std::string& help) {
    return PassOption(app, name, help, [flags, as](const std::string& value) {
      flags->args.push_back(as);
      flags->args.push_back(value);
    });
  };
  pass("--tp,--tensor-parallel-size", "--tp", "ranks that share each layer [1]")
      ->check(Within(1, 8));
  pass("--pp,--pipeline-parallel-size", "--pp", "stages with a part of the layers [1]")
      ->check(Within(1, 16));
  pass("--stage-layers", "--stage-layers", "layers of each stage; see serve")->type_name("N,...");
  pass("--device-memory", "--device-memory",
       "of each rank's device; 0: the ranks share what this machine has available [0]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false).description("SIZE"));
  pass("--max-batch-tokens", "--max-batch-tokens", "tokens of one step [512]")
      ->check(Within(1, 65536));
  pass("--max-batch-seqs", "--max-batch-seqs", "sequences of one step [64]")
      ->check(Within(1, 4096));
  pass("--max-seq-len", "--max-seq-len", "tokens of prompt and output; 0: the model's context [0]")
      ->check(Within(0, UINT32_MAX, "N"));
  pass("--kv-cache-bytes", "--kv-cache-bytes", "of each rank; 0: what fits, see serve [0]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false).description("SIZE"));
  pass("--kv-cache-dtype", "--kv-cache-dtype", "[f16]")
      ->check(CLI::IsMember({"f16", "bf16", "int8", "f32"}));
  pass("-o,--output", "--output", "[table]")->check(CLI::IsMember({"table", "json"}));
  return {app, [flags] { return RunPlan(flags->args); }};
}

Command AddReplay(CLI::App* root, std::string* path) {
  CLI::App* app = root->add_subcommand(
      "replay",
      "play what a router wrote with --record, without a cluster; exit 1, with step and field,\n"
      "where this version plans otherwise");
  Option(app, "FILE", path, "of serve --record or shoal-router --record")->required();
  return {app, [path] { return RunReplay(*path); }};
}

}  // namespace

std::vector<Command> AddLocalCommands(CLI::App* root, AllFlags* flags) {
  return {AddServe(root, &flags->serve), AddGraph(root, &flags->graph), AddPlan(root, &flags->plan),
          AddReplay(root, &flags->replay_file)};
}

}  // namespace shoal::cli
