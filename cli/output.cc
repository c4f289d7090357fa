#include "cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/utf8.h"
#include "glog/logging.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"

namespace shoal::cli {
namespace {

// Columns of a terminal, to a good approximation.
size_t Width(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

Table::Table(std::vector<std::string> headers) { rows_.push_back(std::move(headers)); }

void Table::AddRow(std::vector<std::string> cells) {
  CHECK_EQ(cells.size(), rows_[0].size());
  for (std::string& cell : cells) {
    std::replace_if(
        cell.begin(), cell.end(), [](char c) { return absl::ascii_iscntrl(c); }, '?');
  }
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - Width(row[i]) + 2, ' '));
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  CHECK(status.ok()) << status.ToString();
  return json;
}

std::string ErrorJson(absl::string_view code, absl::string_view message) {
  google::protobuf::Struct error;
  (*error.mutable_fields())["code"].set_string_value(std::string(code));
  (*error.mutable_fields())["message"].set_string_value(EscapeBytes(message));
  google::protobuf::Struct object;
  *(*object.mutable_fields())["error"].mutable_struct_value() = std::move(error);
  return ToJson(object);
}

std::string NestJson(absl::string_view json) {
  return absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(json), {{"\n", "\n "}});
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string WithoutControls(absl::string_view text) {
  std::string clean;
  for (const char c : text) {
    if (c == '\n' || c == '\t' || !absl::ascii_iscntrl(c)) clean.push_back(c);
  }
  return clean;
}

std::string EscapeBytes(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t size = base::Utf8CharacterSize(bytes);
    if (size == 0) {
      absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(bytes[0]));
    } else {
      absl::StrAppend(&text, bytes.substr(0, size));
    }
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

std::string Unescape(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\n", "\n"}, {"\\t", "\t"}, {"\\r", "\r"}, {"\\\\", "\\"}});
}

bool MayColor(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  return isatty(fd) == 1 && (term == nullptr || absl::string_view(term) != "dumb");
}

}  // namespace shoal::cli
