// shoalctl: runs a Shoal cluster on this machine, and talks to one anywhere.

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/edit_distance.h"
#include "cli/exit_code.h"
#include "cli/fd_stream.h"

namespace shoal::cli {
namespace {

constexpr const char* kExitCodes =
    "Data is on stdout, everything else on stderr, errors as \"error: ...\"; with -o json an error "
    "is an\nobject on stdout too. Exit codes: 0 ok, 1 failure, 2 wrong usage, 3 cannot connect, 4 "
    "unhealthy,\n64 + gRPC code for a call that failed, 130 on Ctrl-C.\n`shoalctl help COMMAND` "
    "shows a command's options, `shoalctl --help-all` those of all.";

// Shows of an option's value what it may be, "1..8" or "{f16,f32}", in place of its C++ type.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(32); }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = option->get_type_name();
    const bool is_address = absl::EndsWith(text, "PORT") || absl::EndsWith(text, "BIAS");
    const size_t colon = text.rfind(':');
    if (!is_address && colon != std::string::npos) text.erase(0, colon + 1);
    if (!option->get_positional() || option->nonpositional()) text.insert(0, 1, ' ');
    if (option->get_positional()) return "";
    if (!option->get_default_str().empty()) absl::StrAppend(&text, "=", option->get_default_str());
    return text;
  }
};

Command AddVersion(CLI::App* root, std::ostream* out) {
  CLI::App* app = root->add_subcommand("version", "the version of shoalctl");
  return {app, [out] {
            *out << "shoalctl " << SHOAL_VERSION << "\n";
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

std::vector<const CLI::App*> AllCommands(const CLI::App& root) {
  return root.get_subcommands([](const CLI::App*) { return true; });
}

// Null if there is none.
const CLI::App* FindCommand(const CLI::App& root, absl::string_view name) {
  for (const CLI::App* command : AllCommands(root)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::string UnknownCommand(const CLI::App& root, absl::string_view name) {
  std::vector<std::string> names;
  for (const CLI::App* command : AllCommands(root)) names.push_back(command->get_name());
  const std::string nearest = Nearest(name, names);
  return absl::StrCat("there is no command \"", name, "\"",
                      nearest.empty() ? ": shoalctl help lists them"
                                      : absl::StrCat(": did you mean ", nearest, "?"));
}

Command AddHelp(CLI::App* root, std::ostream* out, std::string* name) {
  CLI::App* app = root->add_subcommand("help", "this, or the options of a command");
  app->add_option("COMMAND", *name, "which");
  return {app, [=] {
            if (name->empty()) {
              // Not root->help(), which is that of the command named: this one.
              *out << root->get_formatter()->make_help(root, "shoalctl",
                                                       CLI::AppFormatMode::Normal);
              return kExitOk;
            }
            const CLI::App* command = FindCommand(*root, *name);
            if (command == nullptr) return FailUsage(UnknownCommand(*root, *name));
            *out << command->help("shoalctl");
            return kExitOk;
          }};
}

Command AddCompletion(CLI::App* root, std::ostream* out, std::string* shell) {
  CLI::App* app = root->add_subcommand("completion", "a script that completes shoalctl's options");
  app->add_option("SHELL", *shell, "bash: source <(shoalctl completion bash)")
      ->check(CLI::IsMember({"bash"}))
      ->required();
  return {app, [root, out] {
            std::vector<CompletedCommand> commands = {{"", OptionNames(*root)}};
            for (const CLI::App* command : AllCommands(*root)) {
              commands.push_back({command->get_name(), OptionNames(*command),
                                  command->get_option_no_throw("MODEL") != nullptr});
            }
            *out << BashCompletion(commands);
            return kExitOk;
          }};
}

// What CLI11 takes for something else, or says less clearly. Empty if all is well.
std::string FindMisuse(const CLI::App& root, int argc, char** argv) {
  if (argv[1][0] != '-' && FindCommand(root, argv[1]) == nullptr) {
    return UnknownCommand(root, argv[1]);
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

// What is wrong with an option that `command` does not have.
std::string UnknownOption(const CLI::App& command, const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  const std::vector<std::string> names = OptionNames(command);
  const auto has = [&](absl::string_view option) {
    return std::find(names.begin(), names.end(), option) != names.end();
  };
  std::string hint;
  if (name == "--server" && has("--admin")) {
    hint = ": it asks the router's address for operators, --admin";
  } else if (name == "--admin" && has("--server")) {
    hint = ": it asks the router's address for clients, --server";
  } else if (const std::string nearest = Nearest(name, names); !nearest.empty()) {
    hint = absl::StrCat(": did you mean ", nearest, "?");
  }
  return absl::StrCat("there is no option ", name, hint);
}

// A message in one line for what CLI11 refused.
std::string Explain(const CLI::App& root, const CLI::ParseError& error, absl::string_view first) {
  const CLI::App* command = FindCommand(root, first);
  const CLI::App& app = command == nullptr ? root : *command;
  std::string message = error.what();
  for (const std::string& argument : app.remaining()) {
    if (argument.size() > 1 && argument[0] == '-') {  // before the words behind it are blamed
      message = UnknownOption(app, argument);
      break;
    }
  }
  return absl::StrCat(message, " (see shoalctl ", command == nullptr ? "" : app.get_name() + " ",
                      "--help)");
}

void ReadEnvironment(SessionFlags* flags) {
  const char* server = std::getenv("SHOAL_SERVER");
  const char* admin = std::getenv("SHOAL_ADMIN");
  if (server != nullptr && *server != '\0') flags->server = server;
  if (admin != nullptr && *admin != '\0') flags->admin = admin;
}

int Run(int argc, char** argv, std::ostream* out) {
  CLI::App app("Runs and uses Shoal, a cluster that serves large language models.", "shoalctl");
  app.formatter(std::make_shared<HelpFormatter>());  // CLI11 wants to own one with its commands
  app.set_version_flag("--version", "shoalctl " SHOAL_VERSION);
  app.set_help_all_flag("--help-all", "the options of every command");
  app.footer(kExitCodes);
  app.require_subcommand(1);

  AllFlags flags;
  flags.session.out = out;
  flags.session.err = &std::cerr;
  ReadEnvironment(&flags.session);
  std::string shell, help_name;
  std::vector<Command> commands;
  for (const auto add : {AddLocalCommands, AddInferenceCommands, AddClusterCommands}) {
    for (Command& command : add(&app, &flags)) commands.push_back(std::move(command));
  }
  commands.push_back(AddVersion(&app, out));
  commands.push_back(AddCompletion(&app, out, &shell));
  commands.push_back(AddHelp(&app, out, &help_name));
  if (argc < 2) {
    std::cerr << app.help() << "\n";
    return FailUsage("a command is missing");
  }
  if (const std::string misuse = FindMisuse(app, argc, argv); !misuse.empty()) {
    return FailUsage(misuse);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, *out, std::cerr);
    return FailUsage(Explain(app, error, argv[1]));
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kExitUsage;
}

int Main(int argc, char** argv) {
  FdStream out(STDOUT_FILENO);
  const int code = Run(argc, argv, &out);
  out.flush();
  if (out.error() == 0) return code;
  if (out.error() != EPIPE) {  // a reader that has enough is no error to speak of
    std::cerr << "error: cannot write to stdout: " << strerror(out.error()) << std::endl;
  }
  return code == kExitOk ? kExitRuntime : code;
}

}  // namespace
}  // namespace shoal::cli

int main(int argc, char** argv) { return shoal::cli::Main(argc, argv); }
