#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/client.h"

// How shoalctl's commands declare their flags. Only main.cc and flags_*.cc include this: CLI11 is
// slow to compile.

namespace shoal::cli {

// A command, and what runs it when it was the one named. Returns the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// What the commands that call a router share. As typed; `server` and `admin` may come from the
// environment.
struct SessionFlags {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  std::string server = "127.0.0.1:8500";
  std::string admin = "127.0.0.1:8501";
  std::string output = "table";
  double timeout_s = 0;
};

// Opens the session and runs `command` with it: the process gets its threads here. kExitUsage if an
// address can be none.
int WithSession(const SessionFlags& flags, const std::function<int(const Session&)>& command);

// "error: ..." and kExitUsage.
int FailUsage(absl::string_view message);

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
template <typename T>
struct ValueOf<std::vector<T>> {
  using type = T;
};

template <typename T>
CLI::Option* Option(CLI::App* app, const std::string& name, T* value, const std::string& help) {
  return app->add_option(name, *value, help)
      ->check(CLI::Validator(WhyMalformed<typename ValueOf<T>::type>, ""));
}

// min <= value <= max, or min < value with kMinExcluded. `shown` is what help has in its place.
enum class Minimum { kIncluded, kExcluded };
CLI::Validator Within(double min, double max, std::string shown = "",
                      Minimum minimum = Minimum::kIncluded);

// An option that another program checks and whose default is its own: `take` gets the value if one
// is given.
CLI::Option* PassOption(CLI::App* app, const std::string& name, const std::string& help,
                        std::function<void(const std::string& value)> take);

void AddServer(CLI::App* app, SessionFlags* flags);
void AddAdmin(CLI::App* app, SessionFlags* flags);
void AddTimeout(CLI::App* app, SessionFlags* flags, const std::string& value);
void AddOutput(CLI::App* app, SessionFlags* flags);

}  // namespace shoal::cli
