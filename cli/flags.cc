#include "cli/flags.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <utility>

#include "cli/address.h"
#include "cli/exit_code.h"

namespace shoal::cli {

int FailUsage(absl::string_view message) {
  std::cerr << "error: " << message << std::endl;
  return kExitUsage;
}

int WithSession(const SessionFlags& flags, const std::function<int(const Session&)>& command) {
  absl::StatusOr<std::string> server = ParseAddress(flags.server, 8500);
  if (!server.ok()) return FailUsage(absl::StrCat("--server: ", server.status().message()));
  absl::StatusOr<std::string> admin = ParseAddress(flags.admin, 8501);
  if (!admin.ok()) return FailUsage(absl::StrCat("--admin: ", admin.status().message()));
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);  // errors are told by us, once
  Session session{flags.out, flags.err};
  session.server = *std::move(server);
  session.admin = *std::move(admin);
  session.format = flags.output == "json" ? Format::kJson : Format::kTable;
  session.timeout = absl::Seconds(flags.timeout_s);
  session.interrupt = Interrupt::Install();
  session.out_is_terminal = isatty(STDOUT_FILENO) == 1;
  return command(session);
}

CLI::Validator Within(double min, double max, std::string shown, Minimum minimum) {
  if (shown.empty()) {
    shown = absl::StrCat(minimum == Minimum::kExcluded ? ">" : "", min, "..", max);
  }
  const auto check = [=](const std::string& value) -> std::string {
    double number = 0;
    if (absl::SimpleAtod(value, &number) && number >= min && number <= max &&
        (minimum == Minimum::kIncluded || number > min)) {
      return "";
    }
    return absl::StrCat(value, " is not ", minimum == Minimum::kExcluded ? "above " : "from ", min,
                        minimum == Minimum::kExcluded ? " and at most " : " to ", max);
  };
  return CLI::Validator(check, shown);
}

CLI::Option* PassOption(CLI::App* app, const std::string& name, const std::string& help,
                        std::function<void(const std::string& value)> take) {
  return app->add_option_function<std::string>(name, std::move(take), help)
      ->type_name("TEXT")
      ->check(CLI::Validator(WhyMalformed<std::string>, ""));
}

void AddServer(CLI::App* app, SessionFlags* flags) {
  Option(app, "-s,--server", &flags->server,
         "the router's address for clients; default: $SHOAL_SERVER, or 127.0.0.1:8500")
      ->type_name("HOST:PORT");
}

void AddAdmin(CLI::App* app, SessionFlags* flags) {
  Option(app, "--admin", &flags->admin,
         "the router's address for operators; default: $SHOAL_ADMIN, or 127.0.0.1:8501")
      ->type_name("HOST:PORT");
}

void AddTimeout(CLI::App* app, SessionFlags* flags, const std::string& value) {
  Option(app, "--timeout", &flags->timeout_s, "that a call may take; default: " + value)
      ->check(Within(0.001, 1e9, "SECONDS"));
}

void AddOutput(CLI::App* app, SessionFlags* flags) {
  Option(app, "-o,--output", &flags->output,
         "table for people; json for scripts, stable: protobuf's, so 64-bit numbers are strings")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

}  // namespace shoal::cli
