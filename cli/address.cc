#include "cli/address.h"

#include <netdb.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace shoal::cli {
namespace {

absl::Status Malformed(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" ", why, ": HOST:PORT is wanted, as in 127.0.0.1:8500"));
}

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; }

bool IsIpv6Character(char c) { return absl::ascii_isxdigit(c) || c == ':' || c == '.' || c == '%'; }

bool IsUnix(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

struct HostAndPort {
  absl::string_view host;  // without brackets
  absl::string_view port;
  bool is_ipv6 = false;
  bool has_port = false;
};

HostAndPort Split(absl::string_view text) {
  HostAndPort parts;
  const size_t bracket = text.find(']');
  if (absl::StartsWith(text, "[") && bracket != absl::string_view::npos) {
    parts.is_ipv6 = true;
    parts.host = text.substr(1, bracket - 1);
    absl::string_view rest = text.substr(bracket + 1);
    parts.has_port = !rest.empty();
    if (!absl::ConsumePrefix(&rest, ":")) rest = "";  // "[::1]8" has no port
    parts.port = rest;
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    parts.is_ipv6 = true;
    parts.host = text;
  } else {
    const size_t colon = text.find(':');
    parts.has_port = colon != absl::string_view::npos;
    parts.host = text.substr(0, colon);
    if (parts.has_port) parts.port = text.substr(colon + 1);
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::string> ParseAddress(absl::string_view text, int default_port) {
  if (IsUnix(text)) return std::string(text);
  if (absl::StrContains(text, "://")) return Malformed(text, "has a scheme");
  const HostAndPort parts = Split(text);
  if (parts.host.empty()) return Malformed(text, "has no host");
  if (!std::all_of(parts.host.begin(), parts.host.end(),
                   parts.is_ipv6 ? IsIpv6Character : IsHostCharacter)) {
    return Malformed(text, "is no address");
  }
  int port = default_port;
  if (parts.has_port && (!std::all_of(parts.port.begin(), parts.port.end(), absl::ascii_isdigit) ||
                         !absl::SimpleAtoi(parts.port, &port) || port < 1 || port > 65535)) {
    return Malformed(text, "has no port from 1 to 65535");
  }
  if (!parts.has_port && !parts.is_ipv6 &&
      std::all_of(parts.host.begin(), parts.host.end(), absl::ascii_isdigit)) {
    return Malformed(text, "is only a number");
  }
  return parts.is_ipv6 ? absl::StrCat("[", parts.host, "]:", port)
                       : absl::StrCat(parts.host, ":", port);
}

std::string WhyUnknownHost(const std::string& address) {
  if (IsUnix(address)) return "";
  const std::string host(Split(address).host);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (error == 0) freeaddrinfo(found);
  return error == 0 ? "" : absl::StrCat("unknown host ", host, " (", gai_strerror(error), ")");
}

}  // namespace shoal::cli
